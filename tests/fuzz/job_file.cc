#include "configs/job.h"

#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

// The length of a --set, the --set, the file.
void job_file(std::span<const std::byte> bytes) {
  Input input(bytes);
  const auto set_size = input.byte();
  std::vector<std::string> sets;
  if (set_size > 0) sets.emplace_back(as_text(input.take(set_size)));
  const auto job = configs::parse_job(as_text(input.rest()), sets,
                                      {.source = "job.yaml", .folder = "/nowhere", .check_files = false});
  if (!job) {
    WEFT_CHECK(!job.error().message.empty());
    return;
  }
  WEFT_CHECK(job->batch_size > 0);
  if (job->microbatch_size > 0) WEFT_CHECK(job->batch_size % job->microbatch_size == 0);
  for (const uint32_t size : job->microbatch_sizes()) WEFT_CHECK(size > 0 && job->batch_size % size == 0);
  (void)job->total_steps(1000);
}

}  // namespace weft::fuzz
