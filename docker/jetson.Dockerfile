# Stepscope on the vendor's image with PyTorch for Jetson, which stays as it is. Choose the image of your JetPack:
#   docker build -f docker/jetson.Dockerfile --build-arg IMAGE=dustynv/pytorch:2.7-r36.4.0 -t stepscope-jetson .
ARG IMAGE=dustynv/pytorch:2.7-r36.4.0
FROM ${IMAGE}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY docs/man docs/man
COPY src src
# The versions of torch and numpy that are here become constraints, and are compared afterwards: never replaced.
RUN python3 -m pip freeze | grep -iE '^(torch|numpy|torchvision)(==| @ )' | sed 's/ @ .*//' > /tmp/there.txt; \
    python3 -c 'import torch; print(torch.__version__)' > /tmp/torch.txt \
    && python3 -m pip install -c /tmp/there.txt '.[report,fleet]' \
    && python3 -c 'import torch; print(torch.__version__)' | diff - /tmp/torch.txt
WORKDIR /work
ENTRYPOINT ["stepscope"]
CMD ["doctor"]
