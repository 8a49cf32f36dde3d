"""The command line of ga3c-train as tests read it, and settings of every kind for hypothesis."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args, get_origin

import pytest
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from ga3c.commands.train import parser
from ga3c.settings.algorithms import ALGORITHMS, facts
from ga3c.settings.files import resolve
from ga3c.settings.flags import parse
from ga3c.settings.messages import ConfigError
from ga3c.settings.schedule import FROM_MEMORY, MAX_SLOTS
from ga3c.settings.schema import GROUPS, NETWORKS, Settings


def settled(*argv: str) -> Settings:
    """The settings that ga3c-train makes of these arguments."""
    given, options = parse(parser(), argv)
    return resolve(given, options.get("config"))


def mistake(*argv: str) -> str:
    """The one line that ga3c-train says about a mistake in these arguments."""
    with pytest.raises(ConfigError) as caught:
        settled(*argv)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


IMPORT_PATHS = st.from_regex(r"[a-z_]{1,5}(\.[a-z_]{1,5})?:[A-Za-z_]{1,5}", fullmatch=True)


def values_of(name: str, field: FieldInfo) -> st.SearchStrategy:
    """Values that the schema allows for a setting."""
    if name == "wrappers":
        return st.lists(IMPORT_PATHS, max_size=3).map(tuple)
    if name in ("network", "algorithm"):
        return st.sampled_from(NETWORKS if name == "network" else list(ALGORITHMS)) | IMPORT_PATHS
    if get_origin(field.annotation) is Literal:
        return st.sampled_from(get_args(field.annotation))
    kind, *null = get_args(field.annotation) or (field.annotation,)
    patterns = [limit.pattern for limit in field.metadata if hasattr(limit, "pattern")]
    if name == "run_dir":
        return st.none() | st.text(min_size=1)
    if patterns:
        return st.none() | st.from_regex(patterns[0].removesuffix("$"), fullmatch=True)
    value = st.from_type(Annotated[(kind, *field.metadata)]) if field.metadata else st.from_type(kind)
    if kind is float:
        value = value.filter(math.isfinite)
    return st.none() | value if null else value


def _agreeing(made: Settings) -> Settings:
    """Without what `resolve` refuses though each setting is fine by itself.

    That is what does not go with a schedule or with agents that learn by themselves.
    """
    alone = {"passes": 1, "minibatches": 1, "normalize_rewards": False, "normalize_observations": False, "norms": False}
    if facts(made.algorithm.algorithm).remembers:
        made = made.changed(normalize_rewards=False, normalize_observations=False, replay_size=10**8, replay_start=1)
    if facts(made.algorithm.algorithm).remembers != (made.batching.schedule in FROM_MEMORY):
        made = made.changed(schedule="queues")
    if facts(made.algorithm.algorithm).workers_learn:
        made = made.changed(schedule="queues", optimizer="rmsprop", **alone)
    if not made.schedule.agents_learn or made.algorithm.optimizer != "adam" or made.run.serial:
        made = made.changed(local_updates=1)
    if made.batching.schedule == "multi-batch":
        made = made.changed(schedule="synchronous")
    return made


any_settings = st.builds(Settings, **{
    group: st.builds(kind, **{name: values_of(name, field) for name, field in kind.model_fields.items()})
    for group, kind in GROUPS.items()}).map(_agreeing).filter(
        lambda made: made.schedule.most[0] * made.agents.slots_per_agent <= MAX_SLOTS)
"""Settings that `resolve` takes."""
