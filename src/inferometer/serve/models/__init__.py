"""Between protocols and backends: the model repository, queues and batches, instances, statistics, shared memory."""
