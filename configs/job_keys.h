// What each key of the job file means, for docs/JOB.md. Which keys there are, and which values each takes,
// the reader itself says (AskedKeys): tests/configs/job_keys_test.cc compares the two, and parses every
// example.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "configs/job.h"
#include "configs/reader.h"

namespace weft::configs {

struct JobKey {
  std::string_view path;     // as job_key_of gives it
  std::string_view meaning;  // Markdown, whole sentences
  std::string_view example;  // lines of a job file
  // One of the two, or neither where the key has to be there. `otherwise` is YAML: to write it is to leave
  // the key away. `otherwise_words` says it where no value does.
  std::string_view otherwise = {};
  std::string_view otherwise_words = {};
  std::string_view takes = {};  // in words, where the reader tells less than it takes
  Task task = Task::Train;      // of its example
};

struct JobKeySection {
  std::string_view title;
  std::string_view about;
  std::span<const JobKey> keys;
};
std::span<const JobKeySection> job_key_sections();
std::span<const JobKey> data_job_keys();     // those of the section Data
std::span<const JobKey> adapter_job_keys();  // and of Adapters
std::span<const JobKey> output_job_keys();   // and of Output
std::span<const JobKey> replica_job_keys();  // and of Replicas

// The key of a path that a reader asked for: what people name is written as INPUT or SET.
std::string job_key_of(std::string_view asked_path);
// The example of a key as a whole job file, whose other keys are the fewest that have to be there.
std::string example_job(const JobKey& key);
// A job file whose files need not be there; `asked` hears which keys its reader asks for, also where it is
// refused.
Result<Job> parse_job(std::string_view text, std::span<const std::string> sets, AskedKeys& asked);
// What the reader of job files asks for, over all examples. Errors: an example that is none.
Result<AskedKeys> asked_by_examples();

}  // namespace weft::configs
