#!/usr/bin/env bash
# Builds the rule image.
#
#   rule_container/build.sh [TAG]           (default: sm-profiler-rules:<version>)
#
# Environment:
#   BASE_IMAGE      the base (default: the Dockerfile's, a public slim Python image); give a digest to pin it: name@sha256:…
#   PYTHON_VERSION  Python of the base, for which wheels are gathered (default 3.12)
#   PLATFORM        x86_64 or aarch64 (default: this machine's)
#   RUN_AS          user id in the container (default 1000)
#   PYTHON          a Python 3.10+ with pip, for gathering wheels (default: python3)
#   BUILDER         buildah or docker (default: the first of them that is installed)
#   BUILDER_OPTIONS more options before `build`, BUILD_OPTIONS more after it
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$here")"
python="${PYTHON:-python3}"
version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/sm_profiler/_version.py")"
tag="${1:-sm-profiler-rules:$version}"
python_version="${PYTHON_VERSION:-3.12}"
platform="${PLATFORM:-$(uname -m)}"
builder="${BUILDER:-$(command -v buildah || command -v docker || true)}"
if [ -z "$builder" ]; then
    echo "build.sh: neither buildah nor docker is installed" >&2
    exit 2
fi

context="$(mktemp -d)"
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$here/requirements.lock" "$context/"
mkdir "$context/wheels"

# Wheels are gathered here, and checked against the lock twice: now, and when the image installs them.
tags=()
for glibc in 2_28 2_27 2_17; do tags+=(--platform "manylinux_${glibc}_$platform"); done
"$python" -m pip download --quiet --disable-pip-version-check --dest "$context/wheels" --require-hashes --only-binary :all: \
    --implementation cp --python-version "$python_version" "${tags[@]}" --platform "manylinux2014_$platform" \
    -r "$here/requirements.lock"
# The same source gives the same image: times are those of the last commit.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 1767225600)}"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$context/wheels" "$root"

arguments=(--build-arg "RUN_AS=${RUN_AS:-1000}")
if [ -n "${BASE_IMAGE:-}" ]; then arguments+=(--build-arg "BASE_IMAGE=$BASE_IMAGE"); fi
# shellcheck disable=SC2206 # options are words
before=(${BUILDER_OPTIONS:-}) after=(${BUILD_OPTIONS:-})
case "$builder" in
*buildah) after+=(--timestamp "$SOURCE_DATE_EPOCH" --format docker) ;;
esac
"$builder" "${before[@]}" build "${after[@]}" "${arguments[@]}" --tag "$tag" --file "$context/Dockerfile" "$context"
echo "built $tag"
