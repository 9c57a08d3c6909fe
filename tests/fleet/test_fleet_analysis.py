"""Bills, groups, hosts, regressions: findings about many rows together."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.errors import ConfigError
from sm_profiler.fleet.analysis import CHANCE, EXACT, assemble, at_least, drawn_at_least, shared_machines
from sm_profiler.fleet.finding import stem_of
from sm_profiler.fleet.page import render_html
from sm_profiler.fleet.wording import advice
from sm_profiler.report.prices import Prices, built_in
from tests.support.fleets import HOUR, START_S, description, finding, priced, report_json

PRICE = 1.408  # of ml.g5.xlarge
DAY = 86400


def starved(name, place, *, workers=0, team="nlp"):
    tags = [{"Key": "team", "Value": team}]
    kind = finding("INPUT_BOUND", 1800.0, share=0.5) if workers == 0 else finding()
    report = report_json(name, kind, loader={"num_workers": workers, "pin_memory": 0})
    return priced(report, description(name, start=START_S + place * DAY, Tags=tags))


def test_one_host_that_is_slow_in_twenty_jobs_is_named():
    jobs = [
        priced(report_json(f"train-{n}", hosts=[f"i-{n}", "i-bad", f"i-x{n}", f"i-y{n}"], slow=1, start=START_S + n))
        for n in range(20)
    ]
    jobs += [priced(report_json(f"other-{n}", hosts=[f"i-{n}", f"i-x{n}"], slow=0)) for n in range(20)]
    (host,) = assemble(jobs).hosts
    assert (host.host, host.jobs, host.slow) == ("i-bad", 20, 20)
    assert host.relative == pytest.approx(1.25)
    assert host.p_value < 1e-6
    assert host.usd == pytest.approx(20 * 0.2 * 4 * PRICE)
    assert "i-bad" in host.sentence


def test_a_slow_machine_is_found_in_jobs_of_one_node():
    jobs = [priced(report_json(f"bert-{n}", hosts=[f"i-{n % 5}"], step_ms=140.0 if n % 5 == 3 else 100.0 + n % 3)) for n in range(100)]  # fmt: skip
    assert [one.host for one in assemble(jobs).hosts] == ["i-3"]


def test_machines_that_are_slow_by_chance_are_not_named():
    jobs = [priced(report_json(f"train-{n}", hosts=["i-1", "i-2", "i-3", "i-4"], slow=n % 4)) for n in range(40)]
    jobs += [priced(report_json("twice", hosts=["i-7", f"i-8{n}"], slow=0)) for n in range(2)]
    assert assemble(jobs).hosts == ()


def test_a_group_whose_loaders_have_no_workers_is_found_with_its_dollars():
    jobs = [starved(f"nlp-{n}", n) for n in range(8)]
    jobs += [starved(f"vision-{n}", n, workers=8, team="vision") for n in range(30)]
    fleet = assemble(jobs, group_by=("team",))
    (common,) = fleet.common
    assert (common.key, common.value, common.cause, common.detail) == ("team", "nlp", "INPUT_BOUND", "num_workers=0")
    assert common.usd == pytest.approx(8 * 0.5 * PRICE)
    assert "num_workers=0" in common.sentence
    assert "$5.63" in common.sentence


def test_a_regression_is_found_with_what_changed():
    jobs = [
        priced(
            report_json("x", step_ms=100.0 + n % 3),
            description(f"bert-{n}", start=START_S + n * DAY, Environment={"GIT_COMMIT": "good"}),
        )
        for n in range(6)
    ]
    slow = [
        priced(
            report_json("x", step_ms=150.0),
            description(f"bert-{n}", start=START_S + n * DAY, Environment={"GIT_COMMIT": "bad"}),
        )
        for n in (6, 7)
    ]
    (found,) = assemble([*slow, *jobs]).regressions
    assert (found.name, found.later, found.same) == ("bert-6", 1, "name")
    assert found.changed == {"git": ("good", "bad")}
    assert found.change == pytest.approx(0.485, abs=0.01)
    assert found.usd == pytest.approx(2 * PRICE * (1 - 101 / 150))


def submitted(name, place, cause=None, *, script="train.py", user="anna", status="Completed"):
    """Return a job of a user's script, begun some days after the first."""
    verdict = finding(cause, 1800.0, share=0.5) if cause else finding()
    more = {"HyperParameters": {"sagemaker_program": script}, "Tags": [{"Key": "user", "Value": user}]}
    return priced(report_json(name, verdict), description(name, start=START_S + place * DAY, status=status, **more))


def test_a_job_that_was_repaired_under_another_name_is_nothing_to_do():
    """It was the first of the jobs that waste most, although the same training had run without that loss since."""
    fleet = assemble([submitted("bert", 0, "INPUT_BOUND"), submitted("bert-fixed", 1)])
    assert fleet.top == ()
    (lost, repaired) = fleet.jobs
    assert (lost.name, lost.repaired_by, repaired.repaired_by) == ("bert", "bert-fixed", "")
    assert "Repaired since: bert-fixed" in advice(lost)
    assert fleet.totals.lost_usd == pytest.approx(0.5 * PRICE)  # it was lost all the same
    assert "1 job loses" not in render_html(fleet)


@pytest.mark.parametrize(
    "later",
    [
        [],
        [submitted("again", 1, "INPUT_BOUND")],
        [submitted("fixed", 1), submitted("back", 2, "INPUT_BOUND")],
        [submitted("other", 1, script="eval.py")],
        [submitted("other", 1, script="")],
        [submitted("other", 1, user="ben")],
        [submitted("before", -1)],
        [submitted("failed", 1, status="Failed")],
        [submitted("stopped", 1, status="Stopped")],
        [submitted("runs", 1, status="InProgress")],
    ],
    ids=lambda jobs: " ".join(job.name for job in jobs),
)
def test_only_a_later_job_of_the_same_training_without_the_loss_is_a_repair(later):
    fleet = assemble([submitted("bert", 0, "INPUT_BOUND"), *later])
    assert "bert" in {top.name for top in fleet.top}


def test_a_job_that_failed_is_repaired_by_one_that_completes():
    fleet = assemble([submitted("bert", 0, status="Failed"), submitted("bert-b", 1)])
    assert [top.name for top in fleet.top] == []


@pytest.mark.parametrize(("confidence", "lost"), [("low", 0.8), ("medium", 1.0), ("high", 1.0)])
def test_a_finding_of_low_confidence_counts_with_what_its_repair_saves_at_least(confidence, lost):
    job = priced(report_json("a", finding("INPUT_BOUND", 600.0, confidence=confidence)))
    assert job.losses[0].seconds == pytest.approx(600.0 * lost)


def on_slurm(number, who, step_ms, **options):
    report = report_json(f"slurm-{number}", step_ms=step_ms, start=START_S + number * DAY, identity=who, **options)
    return priced(report)


def of_users(*, job=True):
    """Return jobs of two users, of which the second one's model is larger, all with the name that a task prolog gives."""
    users = [("anna", "bert", 100.0)] * 5 + [("ben", "vit", 300.0)]
    return [
        on_slurm(1000 + place, {"user": user} | ({"job": name} if job else {}), step)
        for place, (user, name, step) in enumerate(users)
    ]


@pytest.mark.parametrize("job", [True, False])
def test_jobs_with_the_name_of_slurms_number_are_not_compared_with_those_of_others(job):
    assert assemble(of_users(job=job)).regressions == ()


def test_two_users_may_choose_the_same_name_for_different_jobs():
    own = [on_slurm(1000 + place, {"user": "anna", "job": "train"}, 100.0) for place in range(5)]
    assert assemble([*own, on_slurm(1005, {"user": "ben", "job": "train"}, 300.0)]).regressions == ()


def test_jobs_that_slurm_names_alike_are_compared():
    own = [on_slurm(1000 + place, {"user": "anna", "job": "bert"}, 100.0) for place in range(5)]
    (found,) = assemble([*own, on_slurm(1005, {"user": "anna", "job": "bert"}, 300.0)]).regressions
    assert (found.name, found.same) == ("slurm-1005", "job name and user")
    assert found.sentence.startswith("slurm-1005 (bert): steps take")


def test_a_machine_on_which_another_users_jobs_run_is_not_slow():
    jobs = [
        on_slurm(1000 + n, {"user": f"u{n % 5}", "job": "train"}, 140.0 if n % 5 == 3 else 100.0, hosts=[f"i-{n % 5}"])
        for n in range(100)
    ]
    assert assemble(jobs).hosts == ()


PUBLIC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team:1"
NAMES = ("input", "fast", "crash", "spot", "fraud", "churn")


def of_account(name, place, step_ms, image, *, verdict=None, status="Completed", **hyperparameters):
    """Return the row of a job in an account; all have different stems."""
    about = description(
        name, status=status, start=START_S + place * DAY, AlgorithmSpecification={"TrainingImage": image},
        TrainingJobArn=f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{name}",
        HyperParameters={"sagemaker_program": '"train.py"', "sagemaker_job_name": f'"{name}"', **hyperparameters},
    )  # fmt: skip
    return priced(report_json(name, verdict, step_ms=step_ms), about)


def slower(image, *, before, after, **options):
    jobs = [of_account(name, n, 100.0 + n, image, **before, **options) for n, name in enumerate(NAMES)]
    return assemble([*jobs, of_account("later", 10, 200.0, image, **after)]).regressions


def test_jobs_that_share_only_a_public_image_are_not_compared():
    assert slower(PUBLIC, before={"steps": "150"}, after={"steps": "120"}) == ()
    assert slower(PUBLIC, before={}, after={}) == ()  # many unrelated jobs run a train.py
    (found,) = slower(PUBLIC, before={"steps": "150"}, after={"steps": "150"})
    assert (found.same, found.changed) == ("script and hyperparameters", {})
    assert found.sentence.endswith("No known change.")


def test_all_that_is_known_to_differ_from_the_job_before_is_named():
    (found,) = slower(
        OWN, before={"batch-size": '"32"', "lr": "0.1"}, after={"batch-size": '"64"', "api_key": "s3cret"}
    )
    assert found.same == "image"
    assert found.changed == {"hyperparameter batch-size": ("32", "64"), "hyperparameter lr": ("0.1", "")}
    assert "Changed: hyperparameter batch-size 32 → 64, hyperparameter lr 0.1 → none." in found.sentence
    many = {f"layer{n}": str(n) for n in range(9)}
    assert slower(OWN, before={}, after=many)[0].sentence.endswith("and 4 more.")


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
def test_jobs_that_did_not_complete_are_no_baseline(status):
    assert slower(OWN, before={}, after={}, status=status) == ()


@pytest.mark.parametrize(
    "verdict",
    [
        {**finding("BALANCED"), "label": "Machine shared with other processes"},
        {**finding("INPUT_BOUND", 10.0), "confidence": "low", "confidence_reason": "other programs use the cores"},
        finding("INCONCLUSIVE"),
    ],
)
def test_disturbed_jobs_are_neither_a_baseline_nor_slower(verdict):
    assert slower(OWN, before={}, after={}, verdict=verdict) == ()
    jobs = [of_account(name, n, 100.0, OWN) for n, name in enumerate(NAMES)]
    disturbed = of_account("later", 10, 200.0, OWN, verdict=verdict)
    assert disturbed.label == verdict.get("label", disturbed.label)
    assert assemble([*jobs, disturbed]).regressions == ()


def test_jobs_that_always_vary_do_not_regress():
    jobs = [
        priced(report_json("x", step_ms=100.0 * (1 + 0.3 * (n % 3))), description(f"bert-{n}", start=START_S + n * DAY))
        for n in range(12)
    ]
    assert assemble(jobs).regressions == ()


def test_spot_savings_and_failures():
    spot = priced(report_json("a", finding("INPUT_BOUND", 1800.0)), description("a", billable=1800, training=3600))
    assert spot.spot
    assert spot.bill_usd == pytest.approx(PRICE / 2)
    assert spot.saved_usd == pytest.approx(PRICE / 2)
    assert spot.lost_usd == pytest.approx(PRICE / 4)  # half the job, of what was billed
    failed = priced(
        report_json("b", finding("INPUT_BOUND", 1800.0)), description("b", status="Failed", FailureReason="x\ny")
    )
    assert [one.cause for one in failed.losses] == ["FAILED"]
    assert failed.failed_usd == failed.lost_usd == failed.bill_usd == pytest.approx(PRICE)
    fleet = assemble([spot, failed])
    assert [one.name for one in fleet.failures] == ["b"]
    assert fleet.totals.bill_usd == pytest.approx(1.5 * PRICE)
    assert [one.cause for one in fleet.causes] == ["FAILED", "INPUT_BOUND"]


def test_without_a_price_there_are_hours():
    job = priced(report_json("a", finding("INPUT_BOUND", 900.0), instance_type="ml.new.large"))
    fleet = assemble([job])
    assert job.bill_usd is job.lost_usd is None
    assert fleet.totals.lost_instance_hours == pytest.approx(0.25)
    assert fleet.totals.waste == pytest.approx(0.25)
    assert fleet.totals.causes == {"INPUT_BOUND": pytest.approx(0.25)}
    sums = [fleet.totals, *(one.sums for one in (*fleet.groups, *fleet.weeks))]
    dollars = {getattr(one, name) for one in sums for name in attrs.asdict(one) if name.endswith("_usd")}
    assert dollars == {cause.usd for cause in fleet.causes} == {None}  # in fleet.json null, as of each job


def test_several_types_have_the_sum_of_their_prices():
    groups = [
        {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "InstanceGroupName": "a"},
        {"InstanceType": "ml.m5.large", "InstanceCount": 3, "InstanceGroupName": "b"},
    ]
    job = priced(report_json("a"), description("a", ResourceConfig={"InstanceGroups": groups}))
    assert job.bill_usd == pytest.approx(PRICE + 3 * 0.115)


def test_stages_of_the_start():
    moments = [("Starting", 60), ("Downloading", 30), ("Training", 3000), ("Uploading", 10)]
    rows, at = [], START_S
    for status, seconds in moments:
        rows.append({"Status": status, "StartTime": at, "EndTime": at + seconds})
        at += seconds
    report = report_json("a", startup=[{"part": "imports", "label": "", "seconds": 200.0, "paid": True}])
    job = priced(report, description("a", SecondaryStatusTransitions=rows))
    assert job.stages == {"waiting": 60, "download": 30, "starting": 200, "training": 2800, "uploading": 10}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pytorch-training-2026-11-22-13-05-27-123", "pytorch-training"),
        ("resnet50-v2-7", "resnet50"),
        ("bert-a1b2c3d4", "bert"),
        ("12", "12"),
        ("-1", "-1"),
    ],
)
def test_stems_of_names(name, expected):
    assert stem_of(name) == expected


KINDS = st.sampled_from(["INPUT_BOUND", "STRAGGLER", "LOGGING", "INITIALIZATION_BOUND", "BALANCED", "COMPUTE_BOUND"])
SECONDS = st.floats(0, 1e5)


@settings(deadline=None)
@given(
    st.lists(st.tuples(KINDS, SECONDS), min_size=1, max_size=6),
    st.floats(1, 1e5),
    st.integers(0, 10**5),
    st.integers(0, 10**5),
    st.integers(1, 64),
    st.floats(0, 5000),
)
def test_losses_never_exceed_the_bill(  # one argument a strategy
    found, duration, billable, training, instances, interrupted
):
    main, *also = [finding(kind, seconds) for kind, seconds in found]
    report = report_json("a", main, also, duration=duration)
    report["job"]["ranks"][0] |= {"attempts": 2, "interrupted_s": interrupted}
    resources = {"InstanceType": "ml.g5.xlarge", "InstanceCount": instances}
    job = priced(report, description("a", billable=billable, training=training, ResourceConfig=resources))
    assert job.bill_usd == pytest.approx(billable * instances * PRICE / 3600)
    assert sum(one.usd for one in job.losses) <= job.bill_usd * (1 + 1e-9)
    assert job.lost_usd <= job.bill_usd
    assert job.lost_s <= job.billable_s
    totals = assemble([job, job]).totals
    assert totals.lost_usd <= totals.bill_usd == pytest.approx(2 * job.bill_usd)
    assert sum(totals.causes.values()) == pytest.approx(totals.lost_usd)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 30))
def test_chances_are_probabilities(chances, count):
    assert 0 <= at_least(min(count, len(chances)), chances) <= 1


def test_chances_of_draws():
    assert at_least(20, [0.5] * 20) == pytest.approx(2**-20)
    assert at_least(3, [0.5] * 4) == pytest.approx(5 / 16)
    assert at_least(5, [0.5] * 10) == 1.0  # not more than expected
    assert drawn_at_least(5, 5, 5, 50) == pytest.approx(1 / 2118760)
    many = at_least(int(0.6 * 2 * EXACT), [0.5] * 2 * EXACT)
    assert 0 < many < CHANCE


def test_week_and_order():
    jobs = [
        priced(report_json(f"job-{n}", finding("INPUT_BOUND", 360.0 * n), start=START_S + 7 * DAY * n))
        for n in range(12)
    ]
    fleet = assemble(jobs)
    assert [one.week for one in fleet.weeks] == sorted({job.week for job in jobs})
    assert [fleet.jobs[one.job].name for one in fleet.top] == [one.name for one in fleet.top]
    assert fleet.top[0].name == "job-10"  # all that was billed is lost in both, then by name
    assert len(fleet.top) == 10
    assert fleet.totals.instance_hours == pytest.approx(12 * HOUR / 3600)


def test_the_trials_of_a_tuning_job_are_a_group():
    arn = "arn:aws:sagemaker:us-east-1:1:hyper-parameter-tuning-job/tune-lr"
    jobs = [priced(report_json(f"trial-{n}"), description(f"trial-{n}", TuningJobArn=arn)) for n in range(3)]
    fleet = assemble([*jobs, priced(report_json("alone"), description("alone"))], group_by=("tuning-job",))
    assert {(group.value, group.sums.jobs) for group in fleet.groups} == {("tune-lr", 3), ("", 1)}


def test_a_report_of_several_instance_types_has_the_price_of_each():
    types = {"ml.g5.xlarge": 1, "ml.m5.xlarge": 3}
    job = priced(report_json("mixed", instance_types=types), prices={"ml.g5.xlarge": 1.4, "ml.m5.xlarge": 0.2})
    assert job.types == types
    assert job.price == pytest.approx((1.4 + 3 * 0.2) / 4)


def test_own_prices_are_added_to_the_table():
    prices = Prices.of({"p5.48xlarge": 38.5, "dgx": {"gpu_hour": 2.5}, "ml.m5.large": None})
    assert prices.price("p5.48xlarge") == 38.5
    assert prices.origin_of("p5.48xlarge") == "your price table"
    assert prices.price("ml.p5.48xlarge") == 63.296
    assert "us-east-1" in prices.origin_of("ml.p5.48xlarge")
    assert prices.price("dgx", 8) == 20.0
    assert prices.price("dgx") is prices.price("ml.m5.large") is prices.price("unknown") is None
    assert Prices.of({"*": 3.0}).price("") == 3.0


def test_a_type_without_a_price_is_named_with_similar_ones():
    prices = Prices.of({"dgx": {"gpu_hour": 2.5}, "ml.m5.large": None})
    text = prices.unknown("ml.g5.xlrge")
    assert text.startswith("no price is known for ml.g5.xlrge (did you mean ml.g5.xlarge, ")
    assert "--prices" in text
    assert (
        prices.unknown("quantum")
        == "no price is known for quantum: the report names no money; --prices FILE adds prices"
    )
    assert prices.unknown("ml.g5.xlarge") == prices.unknown("dgx") == ""
    assert prices.unknown("ml.m5.large")


def test_an_estimated_price_is_called_one():
    job = priced(report_json("a", instance_type="ml.p5e.48xlarge"))
    assert job.price_from.endswith("the price of ml.p5e.48xlarge estimated")
    own = priced(report_json("a", instance_type="ml.p5e.48xlarge"), prices={"ml.p5e.48xlarge": 40.0})
    assert own.price_from == "your price table"
    assert "estimated" not in priced(report_json("a")).price_from
    assert set(built_in()["estimated"]) <= set(built_in()["dollars_per_hour"])


@pytest.mark.parametrize("price", [True, -1, "3", {"gpu_hour": None}, {"hour": 3}, 1e9, [1]])
def test_wrong_prices_are_refused(price):
    with pytest.raises(ConfigError, match="the price of p5"):
        Prices.of({"p5": price})


def test_what_is_rented_today_has_a_price():
    prices = Prices.of()
    for kind in (
        "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "g6.12xlarge", "gr6.8xlarge",
        "g6e.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge",
    ):  # fmt: skip
        assert prices.price(kind), kind
        if not kind.startswith("gr6"):
            assert prices.price(f"ml.{kind}") >= prices.price(kind), kind
    table = built_in()
    assert set(table["estimated"]) <= set(table["dollars_per_hour"])
    assert "approximate" in table["as_of"]


def test_a_requeued_job_is_not_charged_for_the_queue():
    """84 s on the wall, of which it held its machine 24 s: 12 s of these are the second start."""
    report = report_json("a", duration=84.0, between_attempts_s=60.0)
    report["job"]["ranks"][0] |= {"attempts": 2, "interrupted_s": 72.0, "loop_s": 5.0}
    job = priced(report)
    assert (job.billable_s, job.interrupted_s, job.between_attempts_s) == (24.0, 72.0, 60.0)
    assert job.bill_usd == pytest.approx(24 * PRICE / 3600)
    assert [(one.cause, one.seconds) for one in job.losses] == [("INTERRUPTED", 12.0)]
    assert job.interrupted_usd == pytest.approx(job.bill_usd / 2)
    assert job.lost_share == pytest.approx(0.5)
    assert job.stages["training"] == pytest.approx(24.0)
    found = assemble([job], group_by=("host",))
    assert [one.sums.instance_hours for one in found.groups] == [pytest.approx(24 / 3600)]
    assert found.totals.waste == pytest.approx(0.5)
    assert found.failures[0].instance_hours == pytest.approx(12 / 3600)


def test_what_the_service_bills_has_no_gap():
    report = report_json("a", duration=84.0, between_attempts_s=60.0)
    report["job"]["ranks"][0] |= {"attempts": 2, "interrupted_s": 72.0}
    job = priced(report, description("a", billable=84, training=84))
    assert (job.billable_s, job.between_attempts_s, job.losses[0].seconds) == (84.0, 0.0, 72.0)


def test_time_of_a_machine_that_several_jobs_have_is_counted_more_than_once():
    def job(name, begin, hours, host="gpu-1", **options):
        return priced(report_json(name, duration=hours * HOUR, start=START_S + begin * HOUR, hosts=(host,), **options))

    alone = [job("a", 0, 2), job("after", 2, 1), job("elsewhere", 0, 3, "gpu-2"), job("unknown", 0, 3, "")]
    assert shared_machines(alone) == (0.0, ())
    requeued = job("requeued", 0, 2, between_attempts_s=HOUR)
    again, beside = shared_machines([*alone, requeued, job("b", 1, 1.5), job("c", 1.5, 0.25)])
    assert again == pytest.approx(1.5 + 0.25)
    assert [one.name for one in beside] == ["a", "after", "b", "c"]
    both = priced(report_json("two nodes", duration=HOUR, hosts=("gpu-1", "gpu-1")))
    assert shared_machines([both]) == (0.0, ())
    assert shared_machines([priced(report_json("x"), description("x")), priced(report_json("y"))]) == (0.0, ())


def test_a_job_on_several_machines_belongs_to_each_by_its_part():
    """Two nodes, of which one was requeued elsewhere for a quarter of its time; all of it was on "2 machines"."""
    report = report_json("a", finding("INPUT_BOUND", 0.4 * HOUR), hosts=("gpu-1", "gpu-3"))
    report["job"]["moved"] = {"algo-2": {"gpu-2": 0.75 * HOUR, "gpu-3": 0.25 * HOUR}}
    job, other = priced(report), priced(report_json("b", hosts=("gpu-2",)))
    fleet = assemble([job, other], group_by=("host",))
    hours = {group.value: group.sums.instance_hours for group in fleet.groups}
    assert hours == {"gpu-1": pytest.approx(1.0), "gpu-2": pytest.approx(1.75), "gpu-3": pytest.approx(0.25)}
    assert sum(group.sums.lost_usd for group in fleet.groups) == pytest.approx(fleet.totals.lost_usd)
    assert sum(group.sums.bill_usd for group in fleet.groups) == pytest.approx(fleet.totals.bill_usd)
    assert {job.name: job.groups["host"] for job in fleet.jobs} == {"a": "gpu-1, gpu-2, gpu-3", "b": "gpu-2"}


def test_the_first_cause_is_that_of_the_report():
    """The report leads with the surest saving; the fleet had sorted by the probable one, and advised another repair."""
    also = [finding("OPTIMIZER_BOUND", 900.0)]
    job = priced(report_json("a", finding("INPUT_BOUND", 600.0), also))
    assert [loss.cause for loss in job.losses] == ["INPUT_BOUND", "OPTIMIZER_BOUND"]
    assert assemble([job]).top[0].cause == "INPUT_BOUND"
    report = report_json("b", finding("INPUT_BOUND", 600.0), also)
    for down, place in ((700.0, 0), (500.0, 2)):
        report["job"]["ranks"][0] |= {"attempts": 2, "interrupted_s": down}
        assert [loss.cause for loss in priced(report).losses].index("INTERRUPTED") == place
