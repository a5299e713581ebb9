"""Renders a chart with Helm 4. Run by the interpreter of tools/real_servers/kubernetes, which has Helm as a library.

Standard input is a JSON object {"chart": FOLDER, "values": {NAME: VALUES}}; standard output is one with the findings of the linter
and, by the name of the values, the text of each template or {"error": MESSAGE}.
"""

import json
import sys

import helm_python as helm


def main() -> None:
    request = json.load(sys.stdin)
    rendered = {}
    with helm.Chart.load(request["chart"]) as chart:
        for name, values in request["values"].items():
            try:
                chart.validate_schema(values)
                rendered[name] = chart.render(values, name="bench", namespace="load", revision=3)
            except helm.HelmError as error:
                rendered[name] = {"error": str(error)}
    lint = {name: helm.lint(request["chart"], values, strict=True) for name, values in request["values"].items()}
    json.dump({"lint": lint, "rendered": rendered}, sys.stdout)


main()
