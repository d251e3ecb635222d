#!/usr/bin/env bash
# Install the real agent CLIs that tests run: install_agents.sh PACKAGE_JSON FOLDER
# Where they can't be had, it says so and the tests that need them are skipped; in CI that is a failure.
set -euo pipefail

package_json=$1
folder=$2

give_up() {
    printf '\n!!! NO REAL AGENTS: %s\n!!! The tests that run them will be skipped.\n\n' "$1" >&2
    [ "${CI:-}" != true ] || exit 1
    exit 0
}

if ! command -v npm >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo 'Installing npm'
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm; } \
        >/dev/null || give_up 'apt-get could not install npm'
fi
command -v npm >/dev/null || give_up 'npm is not installed'

echo "Installing the agent CLIs into $folder"
mkdir -p "$folder"
cp "$package_json" "$folder/package.json"
npm install --prefix "$folder" --no-package-lock --no-audit --no-fund --loglevel=error ||
    give_up 'npm install failed'
touch "$folder/installed"
