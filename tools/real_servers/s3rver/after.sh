#!/bin/sh
# Installs s3rver, a Node.js program, into the environment.
set -eu

command -v npm >/dev/null || { echo "s3rver: npm not found: apt-get install npm" >&2; exit 1; }
npm install --silent --no-fund --no-audit --prefix "$1/s3rver" s3rver@3.7.1
