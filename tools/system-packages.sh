#!/bin/sh
# Installs what the tests need from the system: an SSH server, ip for hosts of their own, LibreOffice Calc, poppler, compilers for C, C++
# and Rust, a headless Chromium.
# Does nothing where they are there already. Where the system has no Chromium package (Ubuntu), `$1 -m playwright` brings one.
set -eu
python=${1:-python3}
missing=""
[ -x /usr/sbin/sshd ] || command -v sshd >/dev/null 2>&1 || missing="$missing openssh-server"
command -v ssh >/dev/null 2>&1 || missing="$missing openssh-client"
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
command -v soffice >/dev/null 2>&1 || missing="$missing libreoffice-calc"
command -v pdftoppm >/dev/null 2>&1 || missing="$missing poppler-utils"
command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
command -v rustc >/dev/null 2>&1 || missing="$missing rustc"
browser() {
    for name in chromium-headless-shell chromium google-chrome; do
        command -v "$name" >/dev/null 2>&1 && return 0
    done
    # one that playwright brought before: nothing to install, nor to ask for
    "$python" - >/dev/null 2>&1 <<'END'
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    playwright.chromium.launch(args=["--no-sandbox"]).close()
END
}
if ! browser && command -v apt-get >/dev/null 2>&1; then
    [ "$(id -u)" != 0 ] || apt-get update -qq
    if apt-cache show chromium-headless-shell >/dev/null 2>&1; then
        missing="$missing chromium-headless-shell fonts-dejavu-core"
    fi
fi
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "the tests need:$missing; install them with your package manager (they are Debian's names) and run make test again" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
browser || "$python" -m playwright install --with-deps chromium-headless-shell
