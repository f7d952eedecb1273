/* The layout of record files, in one place.
 *
 * Every file of calls carries this layout as text ("name type" lines, types as numpy writes them), so readers need no
 * second copy: they know the preamble, read the description, and take the fields from it.
 *
 *   offset 0        preamble (struct preamble)
 *   offset 64       description: the fields of `header` and `record`, one per line
 *   offset 2048     header (HEADER_FIELDS), updated while the program runs
 *   offset 4096     about: JSON, what thread this is and which events it counts
 *   offset 4096     about: JSON that describes the thread and its events
 *
 * A record is complete if its `start_ticks` is not 0: that field is written last. There is no separate count, which
 * would cost another write per call. Zeros follow the last record; a call in flight has left its kernel and FLAG_BEGUN
 * there.
 *
 * Files of samples have the same structure, with their own magic, fields and data offset (SAMPLES_…). A sample is
 * complete if its `time_ns` is not 0.
 *
 * Whoever changes a field increments FORMAT_VERSION and adds a line here.
 * 1: first.
 * 2: files of samples; executables have their size and their load and unload times.
 * 3: a file of calls may have dropped its first records, which are a hole in it.
 */
#pragma once

#include <stdint.h>

#define FORMAT_VERSION 3
#define FORMAT_MAGIC "TMAPHOOK"
#define SAMPLES_MAGIC "TMAPSAMP"

#define DESCRIPTION_OFFSET 64
#define HEADER_OFFSET 2048
#define ABOUT_OFFSET 4096
#define DATA_OFFSET 65536 /* a multiple of every page size in use */
#define SAMPLES_DATA_OFFSET 8192

/* X(C type, numpy type, name). The order of fields leaves no gaps. */
#define HEADER_FIELDS(X)                                                                 \
  X(uint64_t, u8, count)            /* complete records, at the latest moment; more may follow */ \
  X(uint64_t, u8, dropped)          /* number of first records that are no longer kept */ \
  X(uint64_t, u8, passed_over)      /* calls that the settings exclude */                \
  X(uint64_t, u8, lost)             /* calls that could not be recorded for lack of space */ \
  X(uint64_t, u8, first_ticks)      /* one moment on both clocks, at the thread's start */ \
  X(uint64_t, u8, first_ns)                                                              \
  X(uint64_t, u8, last_ticks)       /* the same, as late as possible */                  \
  X(uint64_t, u8, last_ns)                                                               \
  X(uint64_t, u8, overhead_ticks)   /* time that the hook adds to a call, measured here */ \
  X(uint64_t, u8, empty_ticks)      /* the measured duration of an empty call */         \
  X(uint64_t, u8, record_bytes)                                                          \
  X(uint64_t, u8, closed)           /* 1: the thread ended and the file is complete */

#define RECORD_FIELDS(X)                                                                 \
  X(uint64_t, u8, start_ticks)                                                           \
  X(uint64_t, u8, duration_ticks)                                                        \
  X(uint32_t, u4, kernel)                                                                \
  X(uint32_t, u4, workgroup_x)                                                           \
  X(uint32_t, u4, workgroup_y)                                                           \
  X(uint32_t, u4, workgroups_x)                                                          \
  X(uint32_t, u4, workgroups_y)                                                          \
  X(uint16_t, u2, workgroup_z)                                                           \
  X(uint16_t, u2, workgroups_z)                                                          \
  X(uint16_t, u2, cpu)                                                                   \
  X(uint16_t, u2, node)                                                                  \
  X(uint32_t, u4, flags)

#define FLAG_BEGUN 4u /* set in every record, before all other fields */
#define FLAG_NO_WORKGROUP 1u /* a call of the runtime's own hook, which does not report the workgroup */
#define FLAG_NOT_RUNNING 2u  /* the event counters did not run all the time: counts are too small */

#define SAMPLES_HEADER_FIELDS(X)                                                         \
  X(uint64_t, u8, count)            /* samples in the file, at the latest moment; more may follow */ \
  X(uint64_t, u8, lost)             /* samples lost for lack of space */                 \
  X(uint64_t, u8, outside)          /* timer only: firings outside of calls, without a sample */ \
  X(uint64_t, u8, throttled)        /* how often the kernel throttled sampling */        \
  X(uint64_t, u8, period)           /* nanoseconds or cycles between samples */          \
  X(uint64_t, u8, cost_ns)          /* time of one sample, measured in the process */    \
  X(uint64_t, u8, first_ns)         /* CLOCK_MONOTONIC when sampling began */            \
  X(uint64_t, u8, last_ns)          /* the same, as late as possible */                  \
  X(uint64_t, u8, cpu_ns)           /* the thread's CPU time between these */            \
  X(uint64_t, u8, record_bytes)                                                          \
  X(uint64_t, u8, closed)           /* 1: the thread ended and the file is complete */

#define SAMPLE_FIELDS(X)                                                                 \
  X(uint64_t, u8, ip)               /* in user space, even if the kernel was running */  \
  X(uint64_t, u8, time_ns)          /* CLOCK_MONOTONIC */                                \
  X(uint32_t, u4, cpu)                                                                   \
  X(uint32_t, u4, flags)

#define SAMPLE_IN_KERNEL 1u /* the kernel was running, called or interrupted from `ip` */

#define LAYOUT_MEMBER(type, code, name) type name;
#define LAYOUT_LINE(type, code, name) #name " " #code "\n"

struct preamble {
  char magic[8];
  uint32_t version;
  uint32_t description_bytes;
  uint32_t about_bytes;
  uint32_t header_offset;
  uint32_t about_offset;
  uint32_t data_offset;
};

struct header {
  HEADER_FIELDS(LAYOUT_MEMBER)
};

struct record {
  RECORD_FIELDS(LAYOUT_MEMBER)
  uint64_t events[];
};

struct samples_header {
  SAMPLES_HEADER_FIELDS(LAYOUT_MEMBER)
};

struct sample {
  SAMPLE_FIELDS(LAYOUT_MEMBER)
};

#define LAYOUT_DESCRIPTION "header\n" HEADER_FIELDS(LAYOUT_LINE) "record\n" RECORD_FIELDS(LAYOUT_LINE)
#define SAMPLES_DESCRIPTION "header\n" SAMPLES_HEADER_FIELDS(LAYOUT_LINE) "record\n" SAMPLE_FIELDS(LAYOUT_LINE)

#define LAYOUT_SIZE(type, code, name) +sizeof(type)
_Static_assert(sizeof(struct header) == 0 HEADER_FIELDS(LAYOUT_SIZE), "the header has gaps");
_Static_assert(sizeof(struct record) == 0 RECORD_FIELDS(LAYOUT_SIZE), "the record has gaps");
_Static_assert(sizeof(struct samples_header) == 0 SAMPLES_HEADER_FIELDS(LAYOUT_SIZE), "the header has gaps");
_Static_assert(sizeof(struct sample) == 0 SAMPLE_FIELDS(LAYOUT_SIZE), "the sample has gaps");
_Static_assert(sizeof(SAMPLES_DESCRIPTION) - 1 <= HEADER_OFFSET - DESCRIPTION_OFFSET, "the description is too long");
_Static_assert(sizeof(LAYOUT_DESCRIPTION) - 1 <= HEADER_OFFSET - DESCRIPTION_OFFSET, "the description is too long");
