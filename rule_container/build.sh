#!/usr/bin/env bash
# Builds the rule image.
#
#   rule_container/build.sh [TAG]           (default: sm-profiler-rules:<version>)
#
# Environment:
#   BASE_IMAGE      the base (default: the Dockerfile's, a public slim Python image); a tag is resolved to its digest,
#                   name@sha256:… is used as it is
#   REQUIRE_DIGEST  1: refuse a base that has no digest, such as an image that exists on this machine only
#   PYTHON_VERSION  Python of the base, for which wheels are collected (default 3.12)
#   PLATFORM        x86_64 or aarch64 (default: this machine's)
#   RUN_AS          user id in the container (default 1000)
#   PYTHON          a Python 3.10+ with pip, for collecting wheels (default: python3)
#   SBOM            file for a copy of the software bill of materials (CycloneDX); the image has it as
#                   /opt/sm-profiler/sbom.cdx.json
#   BUILDER         buildah or docker (default: the first of them that is installed)
#   BUILDER_OPTIONS more options before `build`, BUILD_OPTIONS more after it
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$here")"
python="${PYTHON:-python3}"
version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/sm_profiler/_version.py")"
tag="${1:-sm-profiler-rules:$version}"
base="${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=\(.*\)$/\1/p' "$here/Dockerfile")}"
python_version="${PYTHON_VERSION:-3.12}"
platform="${PLATFORM:-$(uname -m)}"
builder="${BUILDER:-$(command -v buildah || command -v docker || true)}"
if [ -z "$builder" ]; then
    echo "build.sh: neither buildah nor docker is installed" >&2
    exit 2
fi
# shellcheck disable=SC2206 # options are words
before=(${BUILDER_OPTIONS:-}) after=(${BUILD_OPTIONS:-})

# Prints name@digest of a base image, or nothing if it comes from no registry.
resolve() {
    case "$builder" in
    *buildah)
        "$builder" "${before[@]}" pull --quiet "$1" >/dev/null 2>&1 || return 0
        digest="$("$builder" "${before[@]}" inspect --type image --format '{{.FromImageDigest}}' "$1" 2>/dev/null)" || return 0
        ;;
    *)
        "$builder" "${before[@]}" pull --quiet "$1" >/dev/null 2>&1 || return 0
        digest="$("$builder" "${before[@]}" image inspect --format '{{index .RepoDigests 0}}' "$1" 2>/dev/null)" || return 0
        digest="${digest##*@}"
        ;;
    esac
    case "$digest" in
    sha256:*) echo "$(sed 's/:[^:/]*$//' <<<"$1")@$digest" ;;
    esac
}

case "$base" in
*@sha256:*) ;;
*)
    pinned="$(resolve "$base")"
    if [ -n "$pinned" ]; then
        base="$pinned"
    elif [ "${REQUIRE_DIGEST:-0}" = 1 ]; then
        echo "build.sh: $base has no digest; set BASE_IMAGE to name@sha256:…" >&2
        exit 2
    else
        echo "build.sh: warning: $base has no digest, so the same build may use another base later" >&2
    fi
    ;;
esac

context="$(mktemp -d)"
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$context/"
"$python" "$here/locked.py" "$python_version" <"$here/requirements.lock" >"$context/requirements.lock"
mkdir "$context/wheels"

# Wheels are collected here, and checked against the lock file twice: now, and when the image installs them. The lock file
# in the image is that of its version of Python, and complete, so that pip evaluates no markers here.
tags=()
for glibc in 2_28 2_27 2_17; do tags+=(--platform "manylinux_${glibc}_$platform"); done
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$context/wheels" --require-hashes \
    --only-binary :all: \
    --implementation cp --python-version "$python_version" "${tags[@]}" --platform "manylinux2014_$platform" \
    -r "$context/requirements.lock"
# The same source gives the same image: times are those of the last commit, and the build tools have hashes too.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 1767225600)}"
tools="$(mktemp -d)"
trap 'rm -rf "$context" "$tools"' EXIT
"$python" -m pip install --quiet --disable-pip-version-check --target "$tools" --require-hashes --only-binary :all: \
    -r "$here/build-requirements.lock"
PYTHONPATH="$tools${PYTHONPATH:+:$PYTHONPATH}" "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
    --no-build-isolation --wheel-dir "$context/wheels" "$root"
"$python" "$here/sbom.py" --base "$base" --python "$python_version" >"$context/sbom.cdx.json"
if [ -n "${SBOM:-}" ]; then cp "$context/sbom.cdx.json" "$SBOM"; fi

arguments=(--build-arg "RUN_AS=${RUN_AS:-1000}" --build-arg "BASE_IMAGE=$base")
case "$builder" in
*buildah) after+=(--timestamp "$SOURCE_DATE_EPOCH" --format docker) ;;
esac
"$builder" "${before[@]}" build "${after[@]}" "${arguments[@]}" --tag "$tag" --file "$context/Dockerfile" "$context"
echo "built $tag on $base"
