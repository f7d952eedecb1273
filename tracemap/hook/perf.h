/* The kernel's perf interface, for the calling thread. */
#pragma once

#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>

struct perf_event_attr perf_attributes(uint32_t type, uint64_t config, bool exclude_kernel);

/* A descriptor; `group` is that of the group's leader, or -1. Returns -1, with errno, where it is not to be had. */
int perf_open(struct perf_event_attr *attributes, int group);
