// The record of the outer rounds of a run: a file of JSON lines. The first says which run it is of, each
// further one is a round:
//   {"kind":"weft-rounds","format":1,"graph":"<sha-256>","seed":0,"batch_size":64,"replicas":4,"sync":"..."}
//   {"steps_before":0,"steps":[30,30,30,30],"side_by_side":4}
// and, where replicas have shares, "dealt", which says what each was to make. Where replicas came and went
// their number is "auto", and each round has its own. A round that began after a loss says by "sets" whose
// optimizer each of those before goes on with, by "debtless" which of them owe nothing, by "left_out" which
// had no part in the round before, and by "returns_lost" that nothing is owed of the means. Whose samples its
// steps take is said by "taken", [first, count] of steps in order, where it is not those of their own
// numbers. "overlaps": it is agreed on while the next one is made; "void_before": OuterRound::void_before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "replicas/outer_round.h"

namespace weft::storage {

struct OuterRecord {
  std::string graph_hash;  // 64 hexadecimal digits, as a checkpoint has it; empty: not known
  uint64_t seed = 0;
  uint32_t batch_size = 0;
  uint32_t replicas = 1;  // 0: they came and went
  std::string sync;       // how they agree: equal words, equal bytes
  // Each begins where the one before it ended; the first with the record.
  std::vector<replicas::OuterRound> rounds;
};
inline constexpr uint64_t kOuterRecordSizeMax = uint64_t{256} << 20;  // bytes

// Errors: as of reading a file; Corrupted with the line. A last line without its end is left out: it may be
// half of one.
Result<OuterRecord> read_outer_record(const std::filesystem::path& path);

// The file's text, and back. `name` is whose errors speak of.
std::string to_text(const OuterRecord& record);
Result<OuterRecord> parse_outer_record(const std::string& text, const std::string& name);

// Writes a record as its run goes on. One thread.
class OuterRecordWriter {
 public:
  OuterRecordWriter() = default;
  OuterRecordWriter(OuterRecordWriter&&) = delete;
  ~OuterRecordWriter();

  // The file anew, with the rounds that `record` has. Errors: what the disk says.
  Status begin(const std::filesystem::path& path, const OuterRecord& record);
  // Durable when it returns. REQUIRES: begin() returned without an error.
  Status add(const replicas::OuterRound& round);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace weft::storage
