"""The colours of NTSC consoles as ale-py shows them, found with a ROM that shows all 128."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GREY: Final = (
    "004a6f8eaac0d6ec405f7a94acc1d6e93f576e8396a7b8c73b556b8194a7b7c72c445a6e8092a1b0334a5f738495a4b2"
    "273f556b7d8f9fae16314960748899a91129405568798999203c556d8296a8ba28455f788da2b6c82b4a657f97adc1d4"
    "2847627c93a9bdcf294a68849db5cbdf2f4f6b859db3c8dc2f4f6b859db3c8dc")
_RGB: Final = (
    "0000004a4a4a6f6f6f8e8e8eaaaaaac0c0c0d6d6d6ececec48480069690f86861da2a22abbbb35d2d240e8e84afcfc54"
    "7c2c00904811a26221b47a30c3903dd2a44adfb755ecc860901c00a33915b55328c66c3ad5824ae39759f0aa67fcbc74"
    "940000a71a1ab83232c84848d65c5ce46f6ff08080fc909084006497197aa8308fb846a2c659b3d46cc3e07cd2ec8ce0"
    "50008468199a7d30ad9246c0a459d0b56ce0c57ceed48cfc140090331aa34e32b56848c67f5cd5956fe3a980f0bc90fc"
    "000094181aa72d32b84248c8545cd6656fe47580f08490fc001c88183b9d2d57b04272c2548ad265a0e175b5ef84c8fc"
    "0030641850802d6d984288b054a0c565b7d975cceb84e0fc00403018624e2d8169429e8254b89965d1ae75e7c284fcd4"
    "0044001a661a32843248a0485cba5c6fd26f80e88090fc90143c00355f18527e2d6e9c4287b7549ed065b4e775c8fc84"
    "3038005059166d762b88923ea0ab4fb7c25fccd86ee0ec7c482c00694d14866a26a28638bb9f47d2b656e8cc63fce070")

# By palette index as `getScreen` has it. Indices are even; odd entries repeat the even ones.
GREY: Final[NDArray[np.uint8]] = np.repeat(np.frombuffer(bytes.fromhex(_GREY), np.uint8), 2)  # (256,)
RGB: Final[NDArray[np.uint8]] = np.repeat(  # (256, 3)
    np.frombuffer(bytes.fromhex(_RGB), np.uint8).reshape(128, 3), 2, 0)
