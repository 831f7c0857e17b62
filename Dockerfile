# docker build -t tollgate --build-arg VERSION=0.2.0 .
ARG RUST=1.95

FROM docker.io/library/rust:${RUST}-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake make python3 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
# The dependencies first, with an empty program: this layer is reused as long as the manifests do not change.
COPY Cargo.toml Cargo.lock ./
COPY crates/base/Cargo.toml crates/base/
COPY crates/request/Cargo.toml crates/request/
COPY crates/ledger/Cargo.toml crates/ledger/
COPY crates/rules/Cargo.toml crates/rules/
COPY crates/stores/Cargo.toml crates/stores/
COPY crates/identity/Cargo.toml crates/identity/
COPY crates/decision/Cargo.toml crates/decision/
COPY crates/config/Cargo.toml crates/config/
COPY crates/replay/Cargo.toml crates/replay/
COPY crates/llm/Cargo.toml crates/llm/
RUN for crate in crates/*/; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && mkdir -p src benches/store benches/bare benches/eviction benches/postgres crates/rules/benches crates/llm/benches \
    && echo 'fn main() {}' | tee src/main.rs benches/store/main.rs benches/store/allocations.rs benches/bare/main.rs \
        benches/eviction/main.rs benches/postgres/main.rs crates/rules/benches/plan.rs crates/rules/benches/cost_sample.rs crates/llm/benches/answers.rs \
    && touch src/lib.rs \
    && cargo build --release --locked \
    && rm -r src crates
COPY src src
COPY crates crates
# A copied file keeps its modification time, which may be older than the build above.
RUN touch src/main.rs src/lib.rs crates/*/src/lib.rs && cargo build --release --locked && strip target/release/tollgate
# VERSION, if it is given, must be the version that is built.
ARG VERSION=
RUN built=$(target/release/tollgate -V) \
    && if [ -n "$VERSION" ] && [ "$built" != "tollgate $VERSION" ]; then \
        echo "VERSION: must be that of $built, is $VERSION" >&2; exit 1; \
    fi

# What is linked into it, and the texts that have to go with that.
COPY scripts/sbom scripts/sbom
COPY LICENSE-MIT LICENSE-APACHE doc/
RUN scripts/sbom >doc/sbom.cdx.json && scripts/sbom --notices >doc/THIRD-PARTY-LICENSES

# The C library and the trusted certificates, without a shell or package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /build/target/release/tollgate /usr/local/bin/tollgate
COPY --from=build /build/doc /usr/share/doc/tollgate
# After the program: buildah finds a label in its cache whatever VERSION is.
ARG VERSION=
LABEL org.opencontainers.image.title="tollgate" \
      org.opencontainers.image.description="A rate-limiting reverse proxy" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# By number, so that an orchestrator can tell that it is not root.
USER 65532:65532
EXPOSE 8080 9901
# Mount /etc/tollgate as a folder: with a single mounted file, a change by rename is not seen.
ENTRYPOINT ["/usr/local/bin/tollgate"]
CMD ["run", "-c", "/etc/tollgate/gateway.yaml"]
# Ready, not only alive: services that wait for this container want to send requests.
HEALTHCHECK --interval=5s --timeout=4s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/tollgate", "healthcheck", "--ready", "-c", "/etc/tollgate/gateway.yaml"]
