# Stepscope with PyTorch for CPUs of x86 (and arm64): docker build -f docker/x86.Dockerfile -t stepscope .
FROM python:3.12-slim
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home stepscope && install -d -o stepscope /work
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY docs/man docs/man
COPY src src
# torch by its exact version first: what follows finds it there and does not replace it.
RUN pip install -c constraints.txt torch==2.13.0 \
    && pip install -c constraints.txt '.[report,data,fleet]'
USER stepscope
WORKDIR /work
ENTRYPOINT ["stepscope"]
CMD ["doctor"]
