// From a model in parts and a view of the devices to a ring that serves it: which devices, in which order,
// and which parts each of them computes. Pure: same request, same plan.
//
// Parts run in their order. The first stage, the entry, has the first of them and the last: a table of tokens
// is often read at both ends, and who draws a token also computes with it. Rows go round the ring once for
// each token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "plan/cluster.h"
#include "plan/equal_bits.h"

namespace weft::plan {

enum class ServeObjective : uint8_t {
  Latency,     // the least time of a token of one sequence: few stages
  Throughput,  // the most tokens a second of many sequences: no stage and no link is slow
};

struct ServedPart {
  int64_t cache_bytes = 0;  // of a position
  int64_t row_bytes = 0;    // that pass from the parts before to this one and those behind; of one position
  int64_t work_bytes = 0;   // while it runs, at rows_max
  std::vector<uint32_t> weights{};  // that it reads, by index
};
// Of one part on one device: `first` for a pass of one row, `more` for each row beside it that is of another
// sequence, `same` for each of the same one.
struct PartSeconds {
  double first = 0, more = 0, same = 0;
};

// What guesses tokens ahead beside the parts of the entry (serve/draft.h).
struct DraftLoad {
  int64_t weight_bytes = 0, work_bytes = 0;
  int64_t cache_bytes = 0;                           // of a position
  std::function<double(uint32_t device)> seconds{};  // of a guess; nothing: it takes no time
};

struct ServingRequest {
  std::vector<ServedPart> parts{};
  std::vector<int64_t> weight_bytes{};
  std::vector<uint32_t> weights_everywhere{};  // by index: every stage has them
  std::function<PartSeconds(uint32_t device, uint32_t part)> seconds{};
  ClusterView cluster{};
  uint64_t context = 0;  // positions of a sequence; one of that length has to fit
  uint32_t sequences_max = 1;
  uint32_t rows_max = 64;
  std::optional<uint32_t> stages{};  // nothing: as many as pay
  ServeObjective objective = ServeObjective::Latency;
  EqualBits equal_bits = EqualBits::Prefer;
  std::optional<DraftLoad> draft{};  // nothing: nobody guesses
};

struct PartSpan {
  uint32_t begin = 0, end = 0;
  bool operator==(const PartSpan&) const = default;
};
struct ServingStage {
  uint32_t device = 0;            // of the cluster
  std::vector<PartSpan> parts{};  // of the entry one or two, ascending and apart; of others one
  Bytes weights{}, work{};        // of the entry the draft's among them
  Bytes cache{};                  // of a position; likewise
  Bytes kept{};                   // of a position, on the host: its row as it goes to the next stage
  double seconds = 0;             // computing one row
  double hop_seconds = 0;         // until the next stage has it: the last one's is the way back to the entry
};
struct ServingPlan {
  std::vector<ServingStage> stages{};  // the entry first
  uint64_t positions_max = 0;          // of all sequences together, that every stage has memory for
  uint64_t kept_positions_max = 0;     // of them, those whose rows are kept for a stage that comes new
  double token_seconds = 0;            // of one sequence: a row once round the ring
  double first_token_seconds = 0;      // of one sequence: behind a prompt of half a context
  double tokens_per_second = 0;        // of as many sequences as there is room for
  uint32_t sequences = 0;              // those: of full length
  // Under way at once, for that rate: one a stage at least. With a draft as many as fill the ring with the
  // guesses of one sequence.
  uint32_t passes = 1;
  uint32_t passes_shared = 1;  // of these those that sequences share; the others are for guesses alone
  double guessed_tokens_per_second = 0;  // of one sequence, with kAcceptance; 0: nobody guesses
  std::vector<std::string> explanation{};
};

inline constexpr uint32_t kPassesMax = 64;         // or as many as stages, where there are more
inline constexpr uint32_t kDraftPassesMax = 1024;  // with a draft
inline constexpr double kAcceptance = 0.8;  // that part of guesses is taken to be right where a rate is said
// That much longer a token may take where more positions fit for it.
inline constexpr double kMoreSequencesCost = 1.02;

// Errors: Infeasible, saying what lacks (devices, memory: how much, and how long a sequence would fit);
// InvalidArgument for a request that makes no sense.
Result<ServingPlan> plan_serving(const ServingRequest& request);

}  // namespace weft::plan
