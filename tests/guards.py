"""Shows that the tests named in docs/faults.md can fail: takes one guard away at a time and runs the test of its row.

    python tests/guards.py [ROW...]             all rows take a quarter of an hour on two cores

Works on a copy. First all tests have to pass with the guards in place. Then, one line a guard: row, what was taken
away, the test, and how it failed. Exit code 1 if a test passed without its guard. A guard that is no longer where it
was is an error: this file follows the code. Row 30 is guarded by what row 6 shows; 36 is an hour of `tools/soak.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

HERE = Path(__file__).resolve().parent.parent


class Guard(NamedTuple):
    """`edits`: (module, what guards, what stands there without it)."""

    row: int
    taken: str
    test: str
    edits: list[tuple[str, str, str]]


GUARDS = [
    Guard(1, "environments are not made anew", "test_faults.py::test_an_environment_that_fails_in_a_step_is_replaced_"
          "inside_its_agent[crash-RuntimeError: the emulator lost its mind]",
          [("guard", "if self._in_a_row > RETRIES:", "if True:")]),
    Guard(2, "no agent is ever parked", "test_faults.py::test_all_parked_names_the_exception",
          [("recovery", "if times >= PARK_AFTER:", "if False:")]),
    Guard(2, "nobody takes the place of the parked", "test_service.py::test_others_take_the_place_of_parked_agents",
          [("service", "if self._model.agent_steps > self._resumed_at:", "if False:")]),
    Guard(2, "no pause before the next try", "test_recovery.py::test_an_agent_that_never_delivers_waits_longer_each_"
          "time_and_is_parked_the_fifth_time",
          [("recovery", "return now + pause", "return now")]),
    Guard(3, "no stacks of an agent shot down", "test_faults.py::test_an_agent_that_its_environment_ends_or_holds_up_"
          "is_replaced[segfault-step-signal--11]", [("agent", "faulthandler.enable(file)", "pass")]),
    Guard(4, "answers to an earlier incarnation are delivered", "test_channel.py::test_an_answer_to_an_agent_that_is_"
          "gone_changes_nothing_of_its_successor",
          [("channel", "alive = [living[agent] == incarnation for agent, _, _, incarnation in requests.tickets]",
            "alive = [True] * len(requests)")]),
    Guard(4, "a rest of an earlier incarnation counts", "test_channel.py::test_a_rest_of_an_agent_that_is_gone_says_"
          "nothing_of_its_successor",
          [("channel", "if self._living[agent] == incarnation]", "if self._living[agent] >= 0]")]),
    Guard(4, "what an agent given up hands in counts", "test_channel.py::test_what_an_agent_hands_in_that_was_given_up_"
          "though_it_lives_is_ignored",
          [("channel", "if slot != _FENCE and self._incarnation[agent] == incarnation]", "if slot != _FENCE]")]),
    Guard(4, "an agent killed at rest is replaced", "test_service.py::test_an_agent_that_rests_too_long_or_is_killed_"
          "meanwhile_is_no_loss[killed]",
          [("service", "not {*agents} - self._pausing.keys() - self._resting.keys()",
            "not {*agents} - self._pausing.keys()")]),
    Guard(4, "no fence: an index is used again at once", "test_channel.py::TestSlotOwnership",
          [("channel", "self._rollouts.put(agent, _FENCE, 0, self._incarnation[agent])",
            "self._on_vacant(agent)")]),
    Guard(4, "dead agents are not replaced", "test_service.py::test_a_death_is_noticed_and_mended_within_two_seconds",
          [("service", "self._not_before[process] = due or 0.0", "self._not_before[process] = now + 5.0")]),
    Guard(5, "silent agents are not killed", "test_faults.py::test_a_stopped_agent_is_replaced_wherever_it_was",
          [("service", "                process.kill()\n            elif process.pid:",
            "                pass\n            elif process.pid:")]),
    Guard(5, "no stacks of a silent agent", "test_faults.py::test_an_agent_that_its_environment_ends_or_holds_up_is_"
          "replaced[stall-step-hung--9]", [("agent", "faulthandler.register(signal.SIGUSR1, file)",
                                            "signal.signal(signal.SIGUSR1, signal.SIG_IGN)")]),
    Guard(6, "an agent that waits is judged", "test_faults.py::test_nobody_is_killed_for_waiting_or_for_a_pause_of_"
          "the_whole_service",
          [("channel", "asked if self._last_answer > asked + 1.0 and self._taken_at[agent] < asked else None",
            "asked")]),
    Guard(7, "the kernel's count is not looked at", "test_faults.py::test_running_out_of_memory_is_named_and_takes_"
          "one_agent_away", [("service", "not hung and self._ran_out_of_memory():", "not hung and False:")]),
    Guard(7, "what the kernel has killed long ago counts", "test_faults.py::test_a_kill_long_after_memory_ran_out_"
          "elsewhere_is_a_kill", [("service", "        self._oom_kills.append(oom_kills())\n", "")]),
    Guard(7, "agents rest on", "test_faults.py::test_nobody_rests_once_memory_has_run_out",
          [("service", "self._resting = dict.fromkeys(self._resting, 0.0)", "pass")]),
    Guard(8, "no lifeline", "test_faults.py::test_agents_end_with_a_killed_main_process_even_in_a_stuck_environment",
          [("agent", "    _end_with_the_main_process()\n    be_killed", "    be_killed")]),
    Guard(9, "the second Ctrl-C is like the first", "test_cli.py::test_a_second_ctrl_c_skips_the_checkpoint_and_a_"
          "third_ends_it_at_once[2-130-No checkpoint: it was not waited for]",
          [("interruption", "self.hurried = True", "pass")]),
    Guard(9, "the third Ctrl-C is like the second", "test_cli.py::test_a_second_ctrl_c_skips_the_checkpoint_and_a_"
          "third_ends_it_at_once[3-130-]", [("interruption", "os._exit(128 + number)", "pass")]),
    Guard(9, "agents hear Ctrl-C themselves",
          "test_cli.py::test_agents_leave_signals_to_the_main_process_and_nobody_is_on_the_network",
          [("agent", "signal.signal(signal.SIGINT, signal.SIG_IGN)", "signal.signal(signal.SIGINT, signal.SIG_DFL)"),
           ("agent", "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})",
            "signal.pthread_sigmask(signal.SIG_BLOCK, set())")]),
    Guard(10, "SIGTERM is not handled", "test_cli.py::test_it_stops_in_every_state[nothing trained-15]",
          [("interruption", "for number in (signal.SIGINT, signal.SIGTERM)}", "for number in (signal.SIGINT,)}")]),
    Guard(10, "SIGUSR1 is not heard", "test_cli.py::test_a_run_directory_has_one_process_and_its_killed_saves_are_"
          "cleaned_up", [("service", "if interruption.take_checkpoint_request():", "if False:")]),
    Guard(11, "a terminal that goes away ends it",
          "test_cli.py::test_agents_leave_signals_to_the_main_process_and_nobody_is_on_the_network",
          [("interruption", "signal.signal(signal.SIGHUP, signal.SIG_IGN)", "signal.getsignal(signal.SIGHUP)")]),
    Guard(11, "output that nobody reads is waited for", "test_display.py::test_a_run_goes_on_when_nobody_reads_its_"
          "output[False]", [("display", " | os.O_NONBLOCK", "")]),
    Guard(11, "a closed pipe is an error", "test_cli.py::test_training_goes_on_when_nobody_reads_its_output",
          [("display", "except (OSError, ValueError, SystemExit):", "except ZeroDivisionError:")]),
    Guard(12, "requests of a failed predictor are lost", "test_faults.py::test_a_thread_that_raises_once_is_started_"
          "again_and_no_agent_waits_for_ever[predict]", [("predictor", "channel.ask_again(requests)", "pass")]),
    Guard(12, "what a thread raises is swallowed", "test_service.py::test_an_exception_in_a_thread_ends_the_run_with_"
          "that_exception[train]", [("service", "self._failures.append((error, began))", "pass")]),
    Guard(12, "a fault that hits two threads is two", "test_recovery.py::test_a_fault_that_hits_several_threads_is_"
          "one", [("recovery", " or began < before", "")]),
    Guard(12, "a thread is started again for ever", "test_recovery.py::test_a_thread_is_started_again_once_a_minute_"
          "and_divergence_mended_once",
          [("recovery", "before is None or began < before or now - before > THREAD_PEACE", "True")]),
    Guard(13, "standing still is not noticed", "test_faults.py::test_when_nothing_moves_all_stacks_are_told",
          [("service", "        if stalled:\n", "        if False:\n")]),
    Guard(14, "an agent does not wait for a free slot", "test_channel.py::test_an_agent_without_a_free_slot_waits_"
          "until_a_trainer_frees_one", [("channel", "if kind == TAKE and seat.free:", "if kind == TAKE:")]),
    Guard(15, "an update that is not finite is made", "test_model.py::test_an_update_that_is_not_finite_changes_"
          "nothing_and_ten_in_a_row_are_divergence",
          [("model", "tf.cond(tf.reduce_all(tf.math.is_finite(means)), apply,", "tf.cond(tf.constant(True), apply,")]),
    Guard(15, "weights that are not finite are gone back to", "test_run.py::test_going_back_needs_a_checkpoint_that_is_"
          "whole_and_finite", [("run", "if all(np.isfinite(array).all() for array in arrays.values()):", "if True:")]),
    Guard(15, "divergence is mended for ever", "test_recovery.py::test_a_thread_is_started_again_once_a_minute_and_"
          "divergence_mended_once", [("recovery", "again, self._mended = not self._mended, True", "again = True")]),
    Guard(15, "rollouts of weights that are gone are trained on", "test_trainer.py::test_rollouts_of_weights_that_are_"
          "gone_are_not_trained_on", [("trainer", " | (batch.version[:, 0] < model.min_valid_version)", "")]),
    Guard(15, "a second trainer's word on the same weights ends the run", "test_faults.py::test_what_two_trainers_say_"
          "of_the_same_weights_is_mended_once", [("service", "isinstance(error, Diverged) and mended", "False")]),
    Guard(16, "no eps in the logarithm", "test_losses.py::test_where_the_policy_vanished_the_gradient_is_bounded_by_"
          "one_over_epsilon", [("losses", "-ops.log(chosen + log_epsilon)", "-ops.log(chosen)")]),
    Guard(17, "rewards are not checked", "test_faults.py::test_an_environment_that_fails_in_a_step_is_replaced_inside_"
          "its_agent[nan-a reward is not finite or too large]",
          [("guard", "if not math.hypot(*reward.tolist()) < _MOST:", "if False:")]),
    Guard(18, "any observation space is taken", "test_environment.py::test_other_unsupported_spaces_are_refused",
          [("environment", "    raise ConfigError(f\"{name}: observations are {space};",
            "    return space, np.dtype(np.uint8)\n    raise ConfigError(f\"{name}: observations are {space};")]),
    Guard(19, "what was to be replaced is not put back", "test_checkpoint.py::test_killed_or_failing_at_any_call_to_"
          "the_disk_it_leaves_a_whole_checkpoint[kill]",
          [("checkpoint", 'if rest == "replaced" and not (directory / name).exists():', "if False:")]),
    Guard(19, "names come before the disk has the files", "test_checkpoint.py::test_everything_is_on_disk_before_it_"
          "gets_its_name", [("checkpoint", "            sync(path)\n        if final", "            pass\n        if "
                             "final")]),
    Guard(19, "what a failure has moved aside is not put back",
          "test_checkpoint.py::test_what_was_moved_aside_is_put_back_when_its_successor_gets_no_name",
          [("checkpoint", "            replaced.rename(final)\n        shutil", "            pass\n        shutil")]),
    Guard(20, "a full disk ends the run", "test_run.py::test_a_full_disk_is_warned_of_each_minute_and_training_goes_on",
          [("run", "        except (OSError, DeviceFailed) as error:\n", "        except ZeroDivisionError as "
            "error:\n")]),
    Guard(20, "each second another try for an evaluation", "test_run.py::test_a_full_disk_stops_neither_training_nor_"
          "the_record_of_an_evaluation",
          [("run", "                self._next_evaluation = self._next_checkpoint\n", "                pass\n")]),
    Guard(21, "no checksum", "test_checkpoint.py::test_one_flipped_bit_is_noticed_or_harmless",
          [("checkpoint", "if _sha256(path / file) != manifest[file]:", "if False:")]),
    Guard(21, "a damaged checkpoint ends the search", "test_checkpoint.py::test_the_newest_whole_checkpoint_is_taken_"
          "and_newer_ones_are_told",
          [("checkpoint", "        except CheckpointError as error:\n            passed_over",
            "        except ZeroDivisionError as error:\n            passed_over")]),
    Guard(22, "games are not compared", "test_cli.py::test_another_game_or_network_is_not_gone_on_with",
          [("cli", "        if ours != theirs:\n            raise ConfigError(f\"--", "        if False:\n            "
            "raise ConfigError(f\"--"),
           ("model", "        wrong = _difference(variables, arrays)", "        wrong = ''")]),
    Guard(23, "the optimiser is not restored", "test_model.py::test_a_restored_model_goes_on_exactly",
          [("model", '("optimizer", self._optimizer.variables),', "")]),
    Guard(23, "counters are not restored", "test_run.py::test_a_resumed_run_goes_on_where_its_checkpoint_was",
          [("run", 'resumed.get("episodes", 0)', "0")]),
    Guard(23, "a resumed serial run begins new episodes",
          "test_serial.py::test_with_breaks_a_run_learns_what_it_learns_without[toy:catch]",
          [("serial", "    if agents.replays(saved):", "    if False:")]),
    Guard(24, "no lock", "test_run.py::test_a_directory_has_one_user_at_a_time_and_a_killed_one_leaves_it_free",
          [("run", "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass")]),
    Guard(25, "agents are judged after a pause of all", "test_faults.py::test_nobody_is_killed_for_waiting_or_for_a_"
          "pause_of_the_whole_service", [("service", "if now - self._looked > INATTENTION:", "if False:")]),
    Guard(25, "lost seconds are caught up with", "test_run.py::test_after_a_stall_the_next_row_is_again_of_a_whole_"
          "second", [("run", "self._next_row = now + 1.0", "pass")]),
    Guard(26, "an agent without a process ends the run", "test_service.py::test_an_agent_for_which_the_system_has_no_"
          "process_is_done_without[2]", [("service", "except (OSError, EOFError) as error:  # no", "except KeyError as "
                                          "error:  # no")]),
    Guard(26, "a fork server that is just ending is taken for a limit", "test_service.py::test_a_fork_server_that_is_"
          "just_ending_is_waited_for_once[refuses]",
          [("service", "isinstance(error, (ConnectionError, EOFError)) and", "False and")]),
    Guard(26, "descriptors are not looked at", "test_preflight.py::test_descriptors",
          [("preflight", "limit == resource.RLIM_INFINITY or limit >= need,", "True,")]),
    Guard(26, "memory is not looked at", "test_preflight.py::test_memory_of_the_container_counts",
          [("preflight", 'Finding("memory", free >= need,', 'Finding("memory", True,')]),
    Guard(26, "processes are not looked at", "test_preflight.py::test_processes_of_the_container_count",
          [("preflight", "free == resource.RLIM_INFINITY or free >= need,", "True,")]),
    Guard(26, "the disk is not looked at", "test_preflight.py::test_disk",
          [("preflight", 'Finding("disk", free >= _DISK_BYTES,', 'Finding("disk", True,')]),
    Guard(27, "pipes of agents that left stay open", "test_service.py::test_hundreds_of_changes_lose_and_leave_nothing",
          [("channel", "            writer.close()\n", "            _TicketQueue.kept = [*getattr("
            "_TicketQueue, 'kept', []), writer]\n")]),
    Guard(28, "disturbed seconds count", "test_tuning.py::test_a_disturbed_second_and_the_one_after_it_do_not_count",
          [("tuning", "self._quiet = self._quiet + 1 if undisturbed and not self._cold else 0",
            "self._quiet += not self._cold")]),
    Guard(28, "a death is no disturbance", "test_service.py::test_a_death_is_noticed_and_mended_within_two_seconds",
          [("service", "run.statistics.agent_deaths += len(agents)\n        run.disturbances += 1",
            "run.statistics.agent_deaths += 1")]),
    Guard(28, "a checkpoint is no disturbance", "test_run.py::test_a_checkpoint_is_made_when_it_is_due",
          [("run", "self._steps_saved = agent_steps\n        self.disturbances += 1",
            "self._steps_saved = agent_steps")]),
    Guard(28, "another program's coming is taken for the trial's doing", "test_controller.py::test_another_program_"
          "that_comes_and_goes_is_no_reason_for_a_change",
          [("controller", "if self._others_changed(seconds) and", "if False and")]),
    Guard(29, "batches are not halved", "test_faults.py::test_a_batch_too_large_for_the_device_is_halved_and_retried",
          [("trainer", "or len(part) == 1:", "or True:")]),
    Guard(29, "failures of the device are not named", "test_model.py::test_failures_of_the_device_are_named_and_change_"
          "nothing", [("model", "if not isinstance(error, _LOST) and _NO_CUDNN not in error.message:", "if True:")]),
    Guard(31, "agents of low index go first", "test_service.py::test_no_agent_waits_much_longer_than_the_others",
          [("channel", "tickets, ended = self._predictions.without_close("
            "self._predictions.take(largest_size(sizes, waiting)))",
            "tickets, ended = self._predictions.without_close(sorted(self._predictions.take(10_000)))\n"
            "            self._put_back(tickets[largest_size(sizes, waiting):])\n"
            "            tickets = tickets[:largest_size(sizes, waiting)]")]),
    Guard(32, "TensorBoard's failure is ours", "test_run.py::test_a_tensorboard_writer_that_fails_is_given_up_and_"
          "training_goes_on",
          [("run", "except Exception as error:  # its writer", "except KeyError as error:  # its writer")]),
    Guard(33, "a torn line is not ended", "test_run.py::test_a_line_torn_by_a_crash_is_ended_before_the_next",
          [("run", 'self._torn = file.read(1) != b"\\n"', "self._torn = False")]),
    Guard(33, "readers stumble over a torn line", "test_record.py::test_what_a_crash_has_torn_is_passed_over",
          [("record", "            except (ValueError, RecursionError):\n                continue",
            "            except ZeroDivisionError:\n                continue")]),
    Guard(34, "pickled arrays are loaded", "test_checkpoint.py::test_pickled_objects_are_refused_and_not_run",
          [("checkpoint", "np.load(path, allow_pickle=False)", "np.load(path, allow_pickle=True)"),
           ("checkpoint", "        _check_sizes(path)\n", "")]),
    Guard(34, "sizes are not checked", "test_checkpoint.py::test_an_array_larger_than_its_file_is_refused_before_"
          "anything_is_made", [("checkpoint", "        _check_sizes(path)\n", "")]),
    Guard(35, "stuck agents are not killed at the end", "test_cli.py::test_it_stops_in_every_state[stopped agents-2]",
          [("service", "        for left in self._processes.values():\n            left.kill()\n", "")]),
    Guard(35, "an update that never ends is waited for", "test_cli.py::test_it_stops_whatever_it_is_doing[a trainer "
          "stuck-2]", [("service", "        if not updated:\n", "        if False:\n")]),
    Guard(35, "idle trainers are not dismissed", "test_cli.py::test_it_stops_in_every_state[nothing trained-15]",
          [("service", "        self._trainers.resize(0)\n", "")]),
    Guard(37, "it may take for ever", "test_evaluator.py::test_one_that_never_ends_is_ended",
          [("evaluator", "if time.monotonic() - now.began < LONGEST:", "if True:")]),
]


def without(guard: Guard, copy: Path) -> None:
    """Takes the guard away in the package below `copy`."""
    for module, what, instead in guard.edits:
        path = copy / "ga3c" / f"{module}.py"
        text = path.read_text(encoding="utf-8")
        if text.count(what) != 1:
            sys.exit(f"row {guard.row}, {guard.taken}: {what!r} is {text.count(what)} times in {module}.py")
        path.write_text(text.replace(what, instead), encoding="utf-8")


def outcome(tests: list[str], copy: Path, seconds: float) -> tuple[int, str]:
    """(exit code of pytest, how a test failed) of `tests` in `copy`; 1: one failed, or did not end in time."""
    command = [sys.executable, "-m", "pytest", "-m", "", "-x", "-p", "no:cacheprovider", "-o", "timeout=100",
               "-o", "timeout_method=thread", *(f"tests/{test}" for test in tests)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=copy, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "PYTHONPATH": str(copy)})
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = 1  # it hangs: no one would take that for a pass
        finally:
            for left in psutil.process_iter():  # of a test without its guard; some are in sessions of their own
                with contextlib.suppress(psutil.Error):
                    if left.environ().get("PYTHONPATH", "").split(os.pathsep)[0] == str(copy):
                        left.kill()
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    found = re.findall(r"^E   +(.+)$|^(.*Timeout.*)$", text, re.MULTILINE)
    said = next((first or second for first, second in found), (text.strip().splitlines() or ["it hangs"])[-1])
    return code, " ".join(said.split()).strip("+ ")[:100]


def copied(copy: Path) -> None:
    """The project, as far as tests need it."""
    for name in ("ga3c", "tests", "tools", "docs", "setup.cfg", "config.yaml", "README.md"):
        source = HERE / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, copy / name)


def main() -> int:
    """Runs it; see the module's text."""
    rows = {int(row) for row in sys.argv[1:]}
    guards = [guard for guard in GUARDS if not rows or guard.row in rows]
    tests = list(dict.fromkeys(guard.test for guard in guards))
    with tempfile.TemporaryDirectory() as directory:
        copied(Path(directory))
        code, said = outcome(tests, Path(directory), 60.0 * len(tests))
    if code:
        sys.exit(f"with all guards in place: {said}")
    print(f"with all guards in place all {len(tests)} tests pass", flush=True)
    passed = 0
    for guard in guards:
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory)
            copied(copy)
            without(guard, copy)
            began = time.monotonic()
            code, said = outcome([guard.test], copy, 130.0)
        verdict = "fails" if code == 1 else "PASSES" if code == 0 else f"BROKEN ({code})"
        passed += code != 1
        print(f"{guard.row:>2}  {guard.taken}: {guard.test.split('::')[1].split('[')[0]} {verdict} after "
              f"{time.monotonic() - began:.0f} s: {said}", flush=True)
    print(f"{passed} of {len(guards)} tests did not fail" if passed else
          f"each of the {len(guards)} tests fails without its guard")
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main())
