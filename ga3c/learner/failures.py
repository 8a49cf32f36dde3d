"""Failures of the device, as exceptions: lost, stuck, or out of memory."""


class DeviceFailed(Exception):
    """The device is lost, stuck, or cannot do the work. The message is one line and suggests a remedy."""


class TooLarge(DeviceFailed):
    """The device has not enough memory for the work.

    An update that raises it counts as not made. Its earlier minibatches have changed the weights all the same.
    """
