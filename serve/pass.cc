#include "serve/pass.h"

#include <algorithm>
#include <set>

#include "serve/stage.h"

namespace weft::serve {
namespace {

using dag::DType;
using dag::RowSpec;
using dag::Tensor;
using dag::TensorSpec;

constexpr int64_t kNumbers = 6;  // of a piece

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

bool has_sense(const PassPiece& piece, const PassLimits& limits) {
  if (piece.ends()) return piece == PassPiece{.sequence = piece.sequence};
  return piece.count > 0 && piece.count <= limits.rows_max && piece.logits >= PassPiece::kHistory &&
         piece.logits <= piece.count && piece.first >= 0 && piece.first <= limits.context - piece.count &&
         piece.expected >= 0 && piece.expected <= limits.context;
}

TensorSpec spec_of(const RowSpec& row, int64_t rows) { return {row.dtype, {rows, row.width}}; }

}  // namespace

int64_t row_count(std::span<const PassPiece> pieces) {
  int64_t rows = 0;
  for (const PassPiece& piece : pieces) rows += piece.count;
  return rows;
}

Status check_pieces(std::span<const PassPiece> pieces, const PassLimits& limits) {
  if (pieces.empty()) return refuse("a pass without a piece");
  if (pieces.size() > kPassPiecesMax) return refuse("a pass of " + std::to_string(pieces.size()) + " pieces");
  std::set<uint64_t> seen;
  int64_t rows = 0;
  for (const PassPiece& piece : pieces) {
    const std::string name = "sequence " + std::to_string(piece.sequence);
    if (piece.sequence > INT64_MAX || !has_sense(piece, limits))
      return refuse(name + ": a piece of no sense");
    if (!seen.insert(piece.sequence).second) return refuse(name + " is twice in a pass");
    if (piece.is_history() != is_history(pieces)) return refuse(name + ": history beside what is none");
    rows += piece.count;
  }
  if (rows > limits.rows_max)
    return refuse("a pass of more than " + std::to_string(limits.rows_max) + " rows");
  return {};
}

bool is_history(std::span<const PassPiece> pieces) { return pieces.front().is_history(); }

Tensor tensor_of(std::span<const PassPiece> pieces) {
  std::vector<int64_t> numbers;
  for (const PassPiece& piece : pieces)
    numbers.insert(numbers.end(), {static_cast<int64_t>(piece.sequence), piece.first, piece.count,
                                   piece.logits, piece.expected, piece.kept ? 1 : 0});
  return dag::make_tensor({static_cast<int64_t>(pieces.size()), kNumbers}, numbers);
}

Result<std::vector<PassPiece>> pieces_from(const Tensor& tensor, const PassLimits& limits) {
  const dag::Shape& shape = tensor.shape();
  if (tensor.dtype() != DType::I64 || shape.size() != 2 || shape[1] != kNumbers ||
      shape[0] > static_cast<int64_t>(kPassPiecesMax))
    return refuse("the pieces of a pass are " + to_string(tensor.spec()));
  std::vector<PassPiece> pieces;
  const auto numbers = tensor.as<int64_t>();
  for (size_t i = 0; i + kNumbers <= numbers.size(); i += kNumbers) {
    if (numbers[i + 5] != 0 && numbers[i + 5] != 1) return refuse("a piece that is kept in part");
    pieces.push_back({static_cast<uint64_t>(numbers[i]), numbers[i + 1], numbers[i + 2], numbers[i + 3],
                      numbers[i + 4], numbers[i + 5] == 1});
  }
  WEFT_TRY_STATUS(check_pieces(pieces, limits));
  return pieces;
}

std::vector<RowSpec> edges_before(const dag::Incremental& model, uint32_t part) {
  std::vector<RowSpec> edges{{"pieces", DType::I64, kNumbers}};
  const std::vector<RowSpec> rows = rows_before(model, part);
  edges.insert(edges.end(), rows.begin(), rows.end());
  return edges;
}

size_t edge_count(std::span<const PassPiece> pieces, std::span<const RowSpec> edges) {
  const bool all_end =
      std::all_of(pieces.begin(), pieces.end(), [](const PassPiece& piece) { return piece.ends(); });
  return all_end ? 1 : edges.size();
}

Status check_rows(const Pass& pass, std::span<const RowSpec> edges) {
  const std::span<const RowSpec> wanted = edges.first(edge_count(pass.pieces, edges)).subspan(1);
  const int64_t rows = row_count(pass.pieces);
  if (pass.rows.size() != wanted.size())
    return refuse("a pass with rows of " + std::to_string(pass.rows.size()) + " values, wanted are " +
                  std::to_string(wanted.size()));
  for (const RowSpec& edge : wanted) {
    const auto tensor = pass.rows.find(edge.name);
    if (tensor == pass.rows.end() || tensor->second.spec() != spec_of(edge, rows))
      return refuse("the rows of '" + edge.name + "' are missing, or of another form than " +
                    to_string(spec_of(edge, rows)));
  }
  return {};
}

std::vector<Tensor> tensors_of(const Pass& pass, std::span<const RowSpec> edges) {
  std::vector<Tensor> tensors{tensor_of(pass.pieces)};
  for (const RowSpec& edge : edges.first(edge_count(pass.pieces, edges)).subspan(1))
    tensors.push_back(pass.rows.at(edge.name));
  return tensors;
}

Result<Pass> pass_from(uint64_t number, std::span<const Tensor> tensors, std::span<const RowSpec> edges,
                       const PassLimits& limits) {
  if (tensors.empty() || tensors.size() > edges.size())
    return refuse("a pass of " + std::to_string(tensors.size()) + " tensors");
  Pass pass{.number = number};
  WEFT_TRY(pass.pieces, pieces_from(tensors[0], limits));
  for (size_t e = 1; e < tensors.size(); ++e) pass.rows.emplace(edges[e].name, tensors[e]);
  WEFT_TRY_STATUS(check_rows(pass, edges));
  return pass;
}

}  // namespace weft::serve
