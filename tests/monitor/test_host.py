"""Identity of a machine."""

import socket

import pytest

from sm_profiler.container import Resources
from sm_profiler.identity import INSTANCE_TYPE, host_id, instance_type
from sm_profiler.monitor.sampler import Identity


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "dmi").mkdir()
    (tmp_path / "proc").mkdir()
    return tmp_path


def identity(machine, *, in_container=True):
    return host_id(in_container=in_container, proc=machine / "proc", dmi=machine / "dmi")


def test_the_instance_id_comes_first(machine):
    (machine / "dmi/board_asset_tag").write_text("i-0123456789abcdef0\n")
    assert identity(machine) == "i-0123456789abcdef0"


def test_without_it_one_of_the_gpus_identifies_the_machine(machine):
    (machine / "dmi/board_asset_tag").write_text("Not specified\n")
    for place, name in enumerate(["GPU-bbbbbbbb-1", "GPU-aaaaaaaa-2"]):
        folder = machine / f"proc/driver/nvidia/gpus/0000:0{place}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_bytes(f"Model: A100\nGPU UUID: \t {name}\n\xff".encode("latin-1"))
    assert identity(machine) == "GPU-aaaaaaaa-2"


@pytest.mark.parametrize(
    ("vendor", "product", "found"),
    [
        ("Amazon EC2", "p4d.24xlarge", "p4d.24xlarge"), ("Amazon EC2", "u-6tb1.metal", "u-6tb1.metal"),
        ("Xen", "HVM domU", ""), ("Dell Inc.", "a.b", ""), ("Amazon EC2", "../..", ""),
    ],
)  # fmt: skip
def test_the_firmware_names_the_type_of_an_instance(machine, vendor, product, found):
    assert instance_type(machine / "dmi") == ""
    (machine / "dmi/sys_vendor").write_text(f"{vendor}\n")
    (machine / "dmi/product_name").write_text(f"{product}\n")
    assert instance_type(machine / "dmi") == found


@pytest.mark.parametrize(("given", "found"), [(None, "g5.xlarge"), ("p5.48xlarge", "p5.48xlarge")])
def test_the_given_type_comes_before_that_of_the_firmware(given, found):
    source = Identity(dict, str, lambda: Resources(instance_type=given), lambda: "g5.xlarge")
    assert {row.name: row.dimension for row in source.measure(0.0)} == {INSTANCE_TYPE: found}


BOOT = "0d5b8a3e-6a5c-4c1f-9a63-0c8a4a8e7f10"


@pytest.fixture
def booted(machine):
    (machine / "proc/sys/kernel/random").mkdir(parents=True)
    (machine / "proc/sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    (machine / "proc/self/ns").mkdir(parents=True)
    (machine / "proc/self/ns/uts").symlink_to("uts:[4026531838]")
    return machine


def test_a_host_name_counts_outside_of_containers_only(booted):
    assert identity(booted) == BOOT
    assert identity(booted, in_container=False) == socket.gethostname()[:64]


def test_containers_with_names_of_their_own_are_one_machine(booted, monkeypatch):
    (booted / "proc/self/ns/uts").unlink()
    (booted / "proc/self/ns/uts").symlink_to("uts:[4026532201]")
    monkeypatch.setattr(socket, "gethostname", lambda: "trainer")
    assert identity(booted, in_container=False) == BOOT


def test_machines_without_a_name_are_not_one(booted, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost.localdomain")
    assert identity(booted, in_container=False) == BOOT


def test_nothing_is_known_without_the_files_of_the_kernel(machine):
    assert not identity(machine)
    assert identity(machine, in_container=False) == socket.gethostname()[:64]
