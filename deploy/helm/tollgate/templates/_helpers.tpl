{{/* The name of every object. */}}
{{- define "tollgate.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 56 | trimSuffix "-" -}}
{{- end }}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: tollgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tollgate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The least number of gateways. */}}
{{- define "tollgate.replicas" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.minReplicas }}{{ else }}{{ .Values.replicaCount }}{{ end -}}
{{- end }}

{{/* The greatest number of gateways. */}}
{{- define "tollgate.maxReplicas" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.maxReplicas }}{{ else }}{{ .Values.replicaCount }}{{ end -}}
{{- end }}

{{/* Several gateways whose buckets are in memory: empty, or their number. */}}
{{- define "tollgate.separateLimits" -}}
{{- $store := .Values.config.store | default dict -}}
{{- $most := include "tollgate.maxReplicas" . | int -}}
{{- if and (gt $most 1) (not (or $store.redis $store.postgres)) }}{{ $most }}{{ end -}}
{{- end }}

{{/* The port at the end of an address. Argument: a list of its place in the values and the address. */}}
{{- define "tollgate.port" -}}
{{- $port := regexFind "[0-9]+$" (toString (index . 1)) -}}
{{- if or (not $port) (eq $port "0") -}}
{{- fail (printf "%s: must end with a port other than 0, which the Service and the probes name, is %v" (index . 0) (index . 1)) -}}
{{- end -}}
{{- $port -}}
{{- end }}

{{- define "tollgate.adminPort" -}}
{{- include "tollgate.port" (list "config.admin" .Values.config.admin) -}}
{{- end }}

{{/* The listeners with a port as a YAML list: name, port, what a Service says of it, and whether it has TLS and decides. */}}
{{- define "tollgate.listeners" -}}
{{- if .Values.config.listeners }}
{{- range $index, $listener := .Values.config.listeners }}
{{- if not (hasPrefix "unix:" $listener.address) }}
{{- $name := default "" $listener.name }}
{{- $usable := and (regexMatch "^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$" $name) (regexMatch "[a-z]" $name) (ne $name "admin") }}
- name: {{ if $usable }}{{ $name }}{{ else if eq $index 0 }}http{{ else }}listener-{{ $index }}{{ end }}
  port: {{ include "tollgate.port" (list (printf "config.listeners[%d].address" $index) $listener.address) }}
  appProtocol: {{ include "tollgate.appProtocol" $listener | quote }}
  tls: {{ not (not $listener.tls) }}
  decides: {{ not (not $listener.decide) }}
{{- end }}
{{- end }}
{{- else }}
- name: http
  port: {{ include "tollgate.port" (list "config.listen" (.Values.config.listen | default "0.0.0.0:8080")) }}
  appProtocol: ""
  tls: false
  decides: false
{{- end }}
{{- end }}

{{/* Those that proxy, or those that decide for other proxies. Argument: a list of the root and "proxying" or "deciding". */}}
{{- define "tollgate.listenersOf" -}}
{{- $decides := eq (index . 1) "deciding" -}}
{{- range include "tollgate.listeners" (index . 0) | fromYamlArray }}
{{- if eq .decides $decides }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The ports of the Service of the listeners that decide, by theirs. Without an address of its own it has no others. */}}
{{- define "tollgate.decidePorts" -}}
{{- if ne .Values.decideService.type "Headless" }}{{ toYaml .Values.decideService.ports }}{{ end -}}
{{- end }}

{{/* What a Service says of a listener; nothing of HTTP/1.1 in the clear, nor where a PROXY header comes first. */}}
{{- define "tollgate.appProtocol" -}}
{{- if .proxy_protocol -}}
{{- else if .tls -}}https
{{- else if eq (toJson .protocols) "[\"h2c\"]" -}}kubernetes.io/h2c
{{- else if and (not .protocols) (or (has "ext_authz" .decide) (has "rls" .decide)) -}}kubernetes.io/h2c
{{- end -}}
{{- end }}

{{/* The gateway.yaml: the value `config`, with what other values decide. */}}
{{- define "tollgate.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if hasKey $config "drain" -}}
{{- fail "config.drain: must be set as the value drain, which also decides how long a pod has to end" -}}
{{- end -}}
{{- $_ := set $config "drain" (dict "delay" (printf "%ds" (int .Values.drain.delay)) "timeout" (printf "%ds" (int .Values.drain.timeout))) -}}
{{- with .Values.bucketFile -}}
{{- if .enabled -}}
{{- $store := get $config "store" | default dict -}}
{{- if or $store.redis $store.postgres -}}
{{- fail "bucketFile.enabled: must be false where the store is shared: its buckets are not in memory" -}}
{{- end -}}
{{- if and .claim (or $.Values.autoscaling.enabled (gt (int $.Values.replicaCount) 1)) -}}
{{- fail "bucketFile.claim: one gateway alone can use it: replicaCount must be 1, and autoscaling.enabled false" -}}
{{- end -}}
{{- $memory := merge dict ($store.memory | default dict) (dict "file" "/var/lib/tollgate/buckets.tgb") -}}
{{- $_ := set $config "store" (set $store "memory" $memory) -}}
{{- end -}}
{{- end -}}
{{- with include "tollgate.separateLimits" . -}}
{{- if not $.Values.limitsPerPod -}}
{{- $value := ternary "autoscaling.maxReplicas" "replicaCount" $.Values.autoscaling.enabled -}}
{{- fail (printf "%s: must be 1 without config.store.redis or config.store.postgres: each of %s pods would grant every limit in full; limitsPerPod: true allows it" $value .) -}}
{{- end -}}
{{- end -}}
{{- with $config.store -}}
{{- if and (or .redis .postgres) (not (hasKey . "gateways")) -}}
{{- $_ := set . "gateways" (include "tollgate.replicas" $ | int) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/* Changes with the keys that need a restart. A reload brings other certificates, and other answers to those who ask. */}}
{{- define "tollgate.restart" -}}
{{- $config := include "tollgate.config" . | fromYaml -}}
{{- range $listener := $config.listeners -}}
{{- if $listener.tls }}{{ $_ := set $listener "tls" true }}{{ end -}}
{{- range $key := list "clients" "original_request" "refuse_with" "answer_within" -}}
{{- $_ := unset $listener $key -}}
{{- end -}}
{{- end -}}
{{- pick $config "listen" "listeners" "admin" "threads" "store" | toJson | sha256sum -}}
{{- end }}

{{/* What all containers have in common. */}}
{{- define "tollgate.program" -}}
image: {{ include "tollgate.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if or .Values.env .Values.secretEnv }}
env:
  {{- range $name, $value := .Values.env }}
  {{- if hasKey $.Values.secretEnv $name }}
  {{- fail (printf "env.%s: must not be in secretEnv too" $name) }}
  {{- end }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- range $name, $from := .Values.secretEnv }}
  - name: {{ $name }}
    valueFrom:
      secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}
  {{- end }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  # Folders, without subPath: a single file would not change while the pod runs.
  - {name: config, mountPath: /etc/tollgate, readOnly: true}
  {{- if .Values.secretFiles }}
  - {name: secrets, mountPath: /etc/tollgate-secrets, readOnly: true}
  {{- end }}
{{- end }}

{{/* What the gateway and its check have in common. */}}
{{- define "tollgate.container" -}}
{{ include "tollgate.program" . }}
  {{- if .Values.bucketFile.enabled }}
  - {name: buckets, mountPath: /var/lib/tollgate}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "tollgate.pod" -}}
automountServiceAccountToken: false
# No variables from the names of services: gateway.yaml may read variables.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # The group that may read the secrets.
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The volumes of tollgate.program. */}}
{{- define "tollgate.volumes" -}}
- name: config
  configMap: {name: {{ include "tollgate.name" . }}}
{{- with .Values.secretFiles }}
{{- $secrets := list }}
{{- range . }}{{ $secrets = append $secrets .secret | uniq }}{{ end }}
- name: secrets
  {{- if eq (len $secrets) 1 }}
  secret:
    secretName: {{ first $secrets | quote }}
    # 0440
    defaultMode: 288
    items:
      {{- range $path, $from := . }}
      - {key: {{ $from.key | quote }}, path: {{ $path | quote }}}
      {{- end }}
  {{- else }}
  projected:
    # 0440
    defaultMode: 288
    sources:
      {{- range $path, $from := . }}
      - secret:
          name: {{ $from.secret | quote }}
          items:
            - {key: {{ $from.key | quote }}, path: {{ $path | quote }}}
      {{- end }}
  {{- end }}
{{- end }}
{{- end }}
