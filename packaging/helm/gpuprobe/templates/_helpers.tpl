{{- define "gpuprobe.name" -}}
{{- $name := ternary .Release.Name (printf "%s-gpuprobe" .Release.Name) (contains "gpuprobe" .Release.Name) -}}
{{- $name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "gpuprobe.selector" -}}
app.kubernetes.io/name: gpuprobe
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpuprobe.labels" -}}
{{ include "gpuprobe.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
