"""What a session's name says about a worker's life, and what it does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lockctl.runs.executors import Executors, shown_name

LONG = "execution-worker-7d9c5b8f4-abcde"


def workers(
    *names: str,
    versions: Mapping[str, str | None] | None = None,
    live: tuple[str, ...] = (),
    none_live: bool = False,
    hosts: Mapping[str, tuple[str, ...]] | None = None,
) -> Executors:
    sessions = {shown_name(f"dbos_transact_{name}", 180_000): ("10.0.0.1",) for name in names}
    return Executors({**sessions, **(hosts or {})}, versions, frozenset(live), none_live, 180_000)


def judged(found: Executors, executor: str | None, version: str | None = "1.0.0", app: str | None = None) -> str | None:
    """The class, `live` or `unknown`."""
    verdict = found.judge(executor, version, app)
    return {True: "live", False: verdict.class_, None: "unknown"}[verdict.live]


def test_a_run_without_an_executor_has_none() -> None:
    assert judged(workers("w1_1.0.0"), None) == "no_executor"
    assert judged(workers(), None) == "no_executor"


def test_a_session_of_its_executor_and_version_is_life() -> None:
    assert judged(workers("w1_1.0.0"), "w1") == "live"
    assert judged(workers("w2_1.0.0"), "w1") == "executor_gone"


def test_an_executor_that_is_there_at_another_version_recovers_nothing() -> None:
    verdict = workers("w1_2.0.0").judge("w1", "1.0.0", None)
    assert verdict.class_ == "version_gone"
    assert "2.0.0" in verdict.evidence


def test_a_version_of_another_application_recovers_nothing() -> None:
    found = workers("w1_1.0.0", versions={"1.0.0": "chorus"})
    assert judged(found, "w1", app="flow") == "application_gone"
    assert judged(found, "w1", app="chorus") == "live"
    assert judged(found, "w1", app=None) == "live"
    assert judged(workers("w1_1.0.0", versions={"1.0.0": None}), "w1", app="flow") == "live"


def test_what_the_operator_says_counts_without_any_session() -> None:
    assert judged(workers(live=("w1",)), "w1") == "live"
    assert judged(workers(live=("w2",)), "w1") == "executor_gone"
    assert judged(workers(none_live=True), "w1") == "executor_gone"


def test_without_any_evidence_nothing_is_called_gone() -> None:
    assert judged(workers(), "w1") == "unknown"


@pytest.mark.parametrize("executor", [LONG, "x" * 40, "x" * 49, "x" * 60])
def test_a_name_that_is_cut_at_63_bytes_is_recognised(executor: str) -> None:
    version = "0123456789abcdef0123456789abcdef"
    found = workers(f"{executor}_{version}")
    assert max(map(len, found.sessions)) == 63
    assert judged(found, executor, version) == "live"
    assert "cut at 63" in found.judge(executor, version, None).evidence


def test_a_cut_name_tells_versions_apart_as_far_as_it_goes() -> None:
    assert judged(workers(f"{LONG}_a{'0' * 40}"), LONG, f"b{'0' * 40}") == "version_gone"


def test_an_executor_whose_name_goes_on_is_another_one() -> None:
    assert judged(workers("w1-2_1.0.0"), "w1") == "executor_gone"
    assert judged(workers("w10_1.0.0"), "w1") == "executor_gone"
    # w1 at version 2_1.0.0, or w1_2 at version 1.0.0: the versions that have launched decide.
    assert judged(workers("w1_2_1.0.0", versions={"1.0.0": None}), "w1") == "executor_gone"
    assert judged(workers("w1_2_1.0.0", versions={"2_1.0.0": None}), "w1") == "version_gone"


def test_a_run_without_a_version_is_judged_by_its_executor_alone() -> None:
    assert judged(workers("w1_2.0.0"), "w1", None) == "live"
    assert judged(workers("w2_2.0.0"), "w1", None) == "executor_gone"


@pytest.mark.parametrize(("server", "shown"), [(150_000, "w??_1"), (160_000, "w\\xc3\\xa9_1")])
def test_names_outside_ascii_are_compared_as_the_server_shows_them(server: int, shown: str) -> None:
    assert shown_name("wé_1", server) == shown
    found = Executors({shown_name("dbos_transact_wé_1", server): ()}, None, frozenset(), False, server)
    assert judged(found, "wé", "1") == "live"


def test_one_id_from_several_hosts_is_told() -> None:
    here = {
        "dbos_transact_w1_1.0.0": ("10.0.0.1",),
        "dbos_transact_w1_2.0.0": ("10.0.0.2",),
        "dbos_transact_w2_1.0.0": ("10.0.0.1",),
    }
    found = workers(hosts=here, versions={"1.0.0": None, "2.0.0": None})
    assert list(found.shared_ids()) == [("w1", ("10.0.0.1", "10.0.0.2"))]


def test_a_queued_run_waits_for_a_worker_of_its_version() -> None:
    found = workers("w1_1.0.0")
    assert found.waits("1.0.0") is None
    assert "version 0.9" in (found.waits("0.9") or "")
    assert found.waits(None) is None
    assert workers().waits("1.0.0") is None
    assert workers(f"{LONG}_{'0' * 40}").waits("0.9") is None
