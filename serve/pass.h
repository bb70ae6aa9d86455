// A pass: the next positions of some sequences, on their way through all parts of a model. It travels between
// the stages of a ring as tensors, an edge each: edge 0 the pieces, edge 1 + i the value i of what passes
// between two parts.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/incremental/incremental.h"
#include "dag/tensor.h"

namespace weft::serve {

// Consecutive positions of one sequence, as every stage of a pass sees them.
struct PassPiece {
  uint64_t sequence = 0;
  int64_t first = 0;     // position of the first
  int64_t count = 0;     // 0: the sequence has ended, and its caches go; all that follows is 0 then
  int64_t logits = 0;    // rows of logits that are wanted: those of the last positions; or kHistory
  int64_t expected = 0;  // positions that memory is taken for at once, beside what is needed
  bool kept = false;     // whoever sends its rows on keeps them, for a stage that comes new behind it
  // Computed once already, by a stage whose place another has taken: nothing is drawn of it.
  static constexpr int64_t kHistory = -1;
  bool ends() const { return count == 0; }
  bool is_history() const { return logits == kHistory; }
  bool operator==(const PassPiece&) const = default;
};
// Rows by the name of their value: [positions of all pieces, width], piece by piece.
using RowTensors = std::map<std::string, dag::Tensor>;

struct Pass {
  uint64_t number = 0;  // ascending, with gaps
  std::vector<PassPiece> pieces{};
  RowTensors rows{};  // none where all pieces are ends
};

struct PassLimits {
  int64_t rows_max = 64;  // positions of a pass
  int64_t context = 0;    // of a sequence
};
inline constexpr size_t kPassPiecesMax = 65536;

// Each version of a plan numbers its passes anew, above all of those before it; so does an entry that is new
// with it its sequences. History comes first.
inline constexpr uint64_t numbers_of(uint64_t plan_version) { return plan_version << 32; }
inline constexpr uint64_t kHistoryNumbers = uint64_t{1} << 20;
inline constexpr uint64_t first_of(uint64_t number) { return number >> 32 << 32; }  // of the same version

int64_t row_count(std::span<const PassPiece> pieces);

// Errors: InvalidArgument for no piece, too many of them, a sequence twice, numbers that are negative or
// beyond the limits, an end that has positions, and history beside what is not.
Status check_pieces(std::span<const PassPiece> pieces, const PassLimits& limits);

bool is_history(std::span<const PassPiece> pieces);  // of those that check_pieces has nothing against

// i64 [pieces, 6]: sequence, first, count, logits, expected, kept.
dag::Tensor tensor_of(std::span<const PassPiece> pieces);
// The same back, checked. Errors: InvalidArgument for another form; what check_pieces says.
Result<std::vector<PassPiece>> pieces_from(const dag::Tensor& tensor, const PassLimits& limits);

// What travels to the stage that begins with `part`, by edge: that of the pieces, then rows_before(model,
// part). Tensor e of a pass is [rows, width] of these, where edge 0 has a row for each piece.
std::vector<dag::RowSpec> edges_before(const dag::Incremental& model, uint32_t part);
// How many edges a pass with these pieces has, the first included: where all are ends it is 1.
size_t edge_count(std::span<const PassPiece> pieces, std::span<const dag::RowSpec> edges);

// Whether its rows are those of `edges`, in form. Errors: InvalidArgument.
Status check_rows(const Pass& pass, std::span<const dag::RowSpec> edges);

// By edge. REQUIRES: check_rows(pass, edges).
std::vector<dag::Tensor> tensors_of(const Pass& pass, std::span<const dag::RowSpec> edges);
// The same back, checked: pieces and forms, not the numbers in the rows. Errors: InvalidArgument.
Result<Pass> pass_from(uint64_t number, std::span<const dag::Tensor> tensors,
                       std::span<const dag::RowSpec> edges, const PassLimits& limits);

}  // namespace weft::serve
