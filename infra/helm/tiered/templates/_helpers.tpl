{{- define "tiered.name" -}}
{{- printf "%s-tiered" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "tiered.selector" -}}
app.kubernetes.io/name: tiered
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tiered.labels" -}}
{{ include "tiered.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tiered.check" -}}
{{- if not .Values.store }}{{ fail "store is empty: name the bucket, such as --set store=s3://BUCKET/PREFIX" }}{{ end }}
{{- if not (regexMatch "^s3://." .Values.store) }}{{ fail (printf "store=%s: pods share a bucket, s3://BUCKET/PREFIX" .Values.store) }}{{ end }}
{{- if and (not .Values.insecure) (not .Values.tls.secretName) }}{{ fail "tls.secretName is empty: name a secret with a certificate, or set insecure=true for a network that nobody else reaches" }}{{ end }}
{{- if and (not .Values.insecure) (not .Values.firstUsers.secretName) }}{{ fail "firstUsers.secretName is empty: nobody could log in; name a secret with the file first-users, or set insecure=true" }}{{ end }}
{{- $copies := int (index .Values.settings "default.replication.factor" | default "1") }}
{{- if gt $copies (int .Values.replicas) }}{{ fail (printf "default.replication.factor=%d, and there are %d brokers" $copies (int .Values.replicas)) }}{{ end }}
{{- end }}

{{- define "tiered.domain" -}}
{{ include "tiered.name" . }}-brokers.{{ .Release.Namespace }}.svc
{{- end }}
