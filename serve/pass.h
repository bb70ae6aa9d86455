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
  int64_t logits = 0;    // rows of logits that are wanted: those of the last positions
  int64_t expected = 0;  // positions that memory is taken for at once, beside what is needed
  bool ends() const { return count == 0; }
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

int64_t row_count(std::span<const PassPiece> pieces);

// Errors: InvalidArgument for no piece, too many of them, a sequence twice, numbers that are negative or
// beyond the limits, and an end that has positions.
Status check_pieces(std::span<const PassPiece> pieces, const PassLimits& limits);

// i64 [pieces, 5]: sequence, first, count, logits, expected.
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
