"""Where a job's settings are looked for, in which order, and below which root."""

import pytest

from sm_profiler.hook import settings

TEXT = '{"ProfilingParameters": {"LocalPath": "/x"}}'


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert settings.find_config({"SM_PROFILER_ROOT": str(tmp_path)}) is None


@pytest.mark.parametrize("name", ["SM_PROFILER_CONFIG", "SMPROFILER_CONFIG_PATH"])
def test_a_path_is_read_and_may_change(tmp_path, name):
    path = tmp_path / "profile.json"
    path.write_text("\ufeff" + TEXT, "utf-8")
    found = settings.find_config({name: str(path)})
    assert (found.text, found.path, found.changed) == (TEXT, path, path.stat().st_mtime_ns)


def test_json_in_the_environment_whole_or_in_parts():
    assert settings.find_config({"SM_PROFILER_CONFIG": TEXT}).text == TEXT
    parts = {f"SM_PROFILER_CONFIG_{number}": TEXT[number * 10 : number * 10 + 10] for number in range(5)}
    assert settings.find_config(parts).text == TEXT


def test_the_first_source_wins_and_opt_ml_lies_below_the_root(tmp_path):
    path = tmp_path / "input" / "config" / "profilerconfig.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    environment = {"SM_PROFILER_ROOT": str(tmp_path)}
    assert settings.find_config(environment).text == "{}"
    assert settings.find_config({**environment, "SM_PROFILER_CONFIG": TEXT}).text == TEXT


def test_a_named_file_that_is_missing_is_an_error():
    with pytest.raises(OSError, match="No such file"):
        settings.find_config({"SM_PROFILER_CONFIG": "/nowhere/profile.json"})


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, None), ({"RANK": "3"}, 3), ({"RANK": "x"}, None), ({"OMPI_COMM_WORLD_RANK": "2"}, 2)],
)
def test_the_rank_is_what_the_launcher_says(environment, rank):
    assert settings.rank_from(environment) == rank
