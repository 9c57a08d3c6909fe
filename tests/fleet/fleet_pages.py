"""Made-up fleets for the tests of their page."""

from collections import defaultdict

import attrs

from sm_profiler.fleet.model import (
    Cause,
    Failure,
    Fleet,
    FleetJob,
    Group,
    Line,
    Loss,
    Regression,
    Repair,
    SharedCause,
    SlowHost,
    TopJob,
    Totals,
    Week,
)

USERS = ("anna", "ben", "cleo")
ADVICE = "Prepare batches in worker processes: DataLoader(…, num_workers=2)."


def made_up_job(number, *, price=1.5, name=None, **options):
    """Return one job; every third is healthy, every seventh failed."""
    hours, share = 1 + number % 40, 0.0 if number % 3 == 0 else 0.1 + number % 5 / 10
    bill = price and hours * price
    lost = [
        Loss("INPUT_BOUND", hours * 3600 * share, bill and bill * share, "Training waits for data.", ADVICE, "high")
    ]
    return FleetJob(
        **{
            "name": name or f"resnet-training-2026-10-{1 + number % 28:02}-{number:05}", "judged": "report", "status": "Failed" if number % 7 == 6 else "Completed",
            "started": 1_790_000_000.0 + 60_000 * (number % 100), "instance_type": "ml.g5.2xlarge", "verdict": "INPUT_BOUND" if share else "BALANCED",
            "label": "Waiting for data" if share else "Healthy", "confidence": "high", "headline": "Training waits for data." if share else "Nothing to repair.",
            "next_step": ADVICE if share else "", "losses": tuple(lost) if share else (), "lost_s": hours * 3600 * share, "bill_usd": bill,
            "lost_usd": bill and bill * share, "lost_share": share, "billable_s": hours * 3600.0, "groups": {"user": USERS[number % 3]},
            "week": f"2026-W{36 + number % 8}", "where": (Line("src/train.py", 17, "main", 0.5),), "stages": {"image": 90.0, "training": hours * 3000.0},
            "report": f"/reports/job-{number}", **options,
        }
    )  # fmt: skip


def totals_of(jobs):
    """Return the sums over some jobs."""
    priced = [job for job in jobs if job.bill_usd is not None]
    return Totals(
        jobs=len(jobs), judged=sum(job.judged != "" for job in jobs), unreadable=sum(job.error != "" for job in jobs), priced=len(priced),
        failed=sum(job.status == "Failed" for job in jobs), instance_hours=sum(job.instance_hours for job in jobs), gpu_hours=8.0 * len(jobs),
        lost_instance_hours=sum(job.lost_instance_hours for job in jobs), bill_usd=sum(job.bill_usd for job in priced),
        lost_usd=sum(job.lost_usd for job in priced), failed_usd=sum(job.bill_usd for job in priced if job.status == "Failed"),
        causes={"INPUT_BOUND": sum(job.lost_usd for job in priced)}, stages={"image": 3.0, "training": 80.0},
        judged_usd=sum(job.judged_usd for job in priced), judged_instance_hours=sum(job.judged_instance_hours for job in jobs), coverage=1.0,
    )  # fmt: skip


def fleet_of(jobs, **options):
    """Return a fleet of some jobs, with one example of each finding."""
    jobs = sorted(jobs, key=lambda job: -job.lost_s)
    total, by_user, by_week = totals_of(jobs), defaultdict(list), defaultdict(list)
    for job in jobs:
        by_user[job.groups.get("user", "")].append(job)
        by_week[job.week].append(job)
    if not jobs:
        return Fleet(generated="2026-11-22 13:20 UTC", **options)
    first = jobs[0]
    fleet = Fleet(
        generated="2026-11-22 13:20 UTC", sources=("s3://bucket/profiles",), since=1_789_000_000.0, group_by=("user",), prices="your price table", totals=total,
        jobs=tuple(jobs), causes=(Cause("INPUT_BOUND", "Waiting for data", len(jobs), total.lost_instance_hours, total.lost_usd, 1.0, ADVICE),),
        groups=tuple(Group("user", user, totals_of(own)) for user, own in by_user.items()),
        weeks=tuple(Week(week, totals_of(own)) for week, own in sorted(by_week.items())),
        top=tuple(TopJob(place, job.name, "INPUT_BOUND", job.lost_usd, job.lost_instance_hours, ADVICE) for place, job in enumerate(jobs[:10]) if job.lost_s),
        common=(SharedCause("user", "ben", "INPUT_BOUND", "Waiting for data", 9, 9, 0.1, "num_workers=0", 41.0, 30.0, ADVICE, "9 of 9 jobs of user ben wait for data.", Repair(9, 41.0, 30.0)),),
        hosts=(SlowHost("i-0123456789abcdef0", 20, 19, 2.5, 1e-9, 1.31, 9.0, 3.0, tuple(job.name for job in jobs[:20]), "Machine i-0123456789abcdef0 was the slowest."),),
        regressions=(Regression(0, first.name, (jobs[-1].name,), "name", 120.0, 180.0, 0.5, 0.02, {"git": ("abc123", "def456")}, 5.0, "Slower."),),
        failures=tuple(Failure(place, job.name, job.status, "exit code 1", 0, job.bill_usd, job.instance_hours) for place, job in enumerate(jobs) if job.status == "Failed"),
        notes=("12 jobs without a profile were left out.",),
    )  # fmt: skip
    return attrs.evolve(fleet, **options)


def made_up_fleet(count, **options):
    """Return a fleet of so many jobs."""
    return fleet_of([made_up_job(number, **options) for number in range(count)])
