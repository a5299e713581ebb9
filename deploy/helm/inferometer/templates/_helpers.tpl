{{- define "inferometer.name" -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- define "inferometer.selector" -}}
app.kubernetes.io/name: inferometer
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inferometer.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "inferometer.selector" . }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inferometer.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "inferometer.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "inferometer.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The name of the Secret with environment variables; empty if there is none. */}}
{{- define "inferometer.secret" -}}
{{- if .Values.secret.existing -}}
{{ .Values.secret.existing }}
{{- else if .Values.secret.values -}}
{{ include "inferometer.name" . }}
{{- end -}}
{{- end -}}

{{/* Names of settings whose value is a key. Those that only name a variable or a file, such as api_key_env, are not among them. */}}
{{- define "inferometer.keys" -}}
(?i)(api[_-]?key|authorization|token|secret|password|cookie)
{{- end -}}

{{/* Not empty if the configuration has a key in it, as those of inference-perf may: then it is kept in a Secret. */}}
{{- define "inferometer.keyInConfig" -}}
{{- if regexMatch (printf "%s[\"']?\\s*:|://[^/@\\s]*:[^/@\\s]*@" (include "inferometer.keys" .)) .Values.config -}}yes{{- end -}}
{{- end -}}

{{/* Fails if a key would be readable in the Job itself. */}}
{{- define "inferometer.noKeys" -}}
{{- $keys := include "inferometer.keys" . -}}
{{- range .Values.args -}}
  {{- if regexMatch (printf "%s([ =:]|$)" $keys) (toString .) -}}
    {{- fail (printf "args: everybody who may see the Job could read the value of %s; put it into `secret`, and name its variable (server.api_key_env)" (regexFind "^[^ =:]*" (toString .))) -}}
  {{- end -}}
{{- end -}}
{{- range .Values.env -}}
  {{- if and .value (regexMatch "(KEY|TOKEN|SECRET|PASSWORD)$" .name) -}}
    {{- fail (printf "env: everybody who may see the Job could read the value of %s; put it into `secret`, or use valueFrom" .name) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Everything after the image's entry point, `inferometer`. */}}
{{- define "inferometer.args" -}}
{{- $args := list .Values.mode -}}
{{- if eq .Values.mode "inference-perf" -}}
  {{- if .Values.metrics.enabled -}}
    {{- fail "metrics.enabled: live metrics are not available with mode inference-perf; use mode run" -}}
  {{- end -}}
  {{- if eq .Values.results.type "bucket" -}}
    {{- fail "results.type bucket: with mode inference-perf the bucket is set by `storage` in the config; use results.type none" -}}
  {{- end -}}
  {{- $args = concat $args (list "--config_file" "/config/config.yaml") -}}
{{- else -}}
  {{- $args = append $args "/config/config.yaml" -}}
  {{- if eq .Values.results.type "bucket" -}}
    {{- $url := required "results.bucket.url is needed for results.type bucket: s3://BUCKET/PREFIX or gs://BUCKET/PREFIX" .Values.results.bucket.url -}}
    {{- $args = concat $args (list "--set" (printf "output=%s" $url)) -}}
  {{- end -}}
  {{- if .Values.metrics.enabled -}}
    {{- $args = concat $args (list "--set" (printf "export.metrics_port=%d" (int .Values.metrics.port)) "--set" "export.metrics_host=0.0.0.0") -}}
  {{- end -}}
{{- end -}}
{{- concat $args .Values.args | toYaml -}}
{{- end -}}
