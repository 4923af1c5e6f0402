# A worker for tests: Celery, this package as it is installed where the tests run, and what
# pytest-celery wants to find. The app comes at run time, in a volume at /app.
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}

RUN useradd --create-home test_user
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What changes seldom comes first. psutil is for pytest-celery's look at a worker's processes.
COPY requirements.txt /tmp/
ARG CELERY_VERSION=""
RUN pip install --requirement /tmp/requirements.txt "celery[redis]${CELERY_VERSION:+==$CELERY_VERSION}" psutil
ARG PACKAGE
COPY package /tmp/package
RUN cd /tmp/package && pip install --no-deps "$PACKAGE"

WORKDIR /app
USER test_user
