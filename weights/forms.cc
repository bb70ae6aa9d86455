#include "weights/forms.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "base/check.h"
#include "storage/sha256.h"

namespace weft::weights {
namespace {

constexpr uint64_t kPieceMax = uint64_t{1} << 20;
constexpr uint64_t kBlockMax = uint64_t{32} << 20;  // of a matrix that is transposed
constexpr uint64_t kTile = 32;                      // elements

bool is_widened(Form form) { return form == Form::Widened || form == Form::TransposedWidened; }
bool is_transposed(Form form) { return form == Form::Transposed || form == Form::TransposedWidened; }
bool is_matrix(const dag::TensorSpec& spec) {
  return spec.rank() == 2 && spec.shape[0] > 1 && spec.shape[1] > 1;
}

Status read_stored(const data::File& file, const StoredTensor& tensor, const data::ByteSink& sink) {
  uint64_t left = bytes_of(tensor.spec, Form::AsStored), offset = tensor.offset;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(left, kPieceMax)));
  while (left > 0) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(left, kPieceMax)));
    WEFT_TRY_STATUS(file.read_at(offset, part));
    WEFT_TRY_STATUS(sink(part));
    offset += part.size();
    left -= part.size();
  }
  return {};
}

// [rows][columns] to [columns][rows], tile by tile: neither side is walked along a long stride.
template <typename T>
void transpose(const std::byte* from, std::byte* to, uint64_t rows, uint64_t columns) {
  for (uint64_t r0 = 0; r0 < rows; r0 += kTile)
    for (uint64_t c0 = 0; c0 < columns; c0 += kTile)
      for (uint64_t c = c0; c < std::min(columns, c0 + kTile); ++c)
        for (uint64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
          std::memcpy(to + (c * rows + r) * sizeof(T), from + (r * columns + c) * sizeof(T), sizeof(T));
}
void transpose(int64_t element, const std::byte* from, std::byte* to, uint64_t rows, uint64_t columns) {
  if (element == 1) return transpose<uint8_t>(from, to, rows, columns);
  if (element == 2) return transpose<uint16_t>(from, to, rows, columns);
  if (element == 4) return transpose<uint32_t>(from, to, rows, columns);
  WEFT_CHECK(element == 8);
  transpose<uint64_t>(from, to, rows, columns);
}

Status hand_on(std::span<const std::byte> bytes, const data::ByteSink& sink) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<size_t>(bytes.size(), kPieceMax));
    WEFT_TRY_STATUS(sink(part));
    bytes = bytes.subspan(part.size());
  }
  return {};
}

// Some columns at a time: of each row the part that lies in them.
Status read_transposed(const data::File& file, const StoredTensor& tensor, const data::ByteSink& sink) {
  const auto rows = static_cast<uint64_t>(tensor.spec.shape[0]),
             columns = static_cast<uint64_t>(tensor.spec.shape[1]);
  const auto element = static_cast<uint64_t>(dag::element_size(tensor.spec.dtype));
  const uint64_t at_once = std::clamp<uint64_t>(kBlockMax / (rows * element), 1, columns);
  const std::string what_for = "a matrix that is transposed";
  WEFT_TRY(std::vector<std::byte> block, data::allocate_bytes(rows * at_once * element, what_for));
  WEFT_TRY(std::vector<std::byte> turned, data::allocate_bytes(rows * at_once * element, what_for));
  for (uint64_t first = 0; first < columns; first += at_once) {
    const uint64_t count = std::min(at_once, columns - first), width = count * element;
    if (count == columns) {
      WEFT_TRY_STATUS(file.read_at(tensor.offset, std::span(block).first(rows * width)));
    } else {
      for (uint64_t row = 0; row < rows; ++row)
        WEFT_TRY_STATUS(file.read_at(tensor.offset + (row * columns + first) * element,
                                     std::span(block).subspan(row * width, width)));
    }
    transpose(static_cast<int64_t>(element), block.data(), turned.data(), rows, count);
    WEFT_TRY_STATUS(hand_on(std::span(turned).first(rows * width), sink));
  }
  return {};
}

// Pieces of numbers of half precision become pieces of float32.
data::ByteSink widening(dag::DType dtype, const data::ByteSink& sink) {
  float (*const widen)(uint16_t) = dtype == dag::DType::F16 ? &dag::float_from_f16 : &dag::float_from_bf16;
  return [widen, &sink](std::span<const std::byte> piece) {
    std::vector<float> wide(piece.size() / sizeof(uint16_t));
    for (size_t i = 0; i < wide.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, piece.data() + i * sizeof bits, sizeof bits);
      wide[i] = widen(bits);
    }
    return hand_on(std::as_bytes(std::span(wide)), sink);
  };
}

}  // namespace

std::vector<Form> forms_of(const dag::TensorSpec& spec) {
  std::vector<Form> forms{Form::AsStored};
  if (dag::is_half(spec.dtype)) forms.push_back(Form::Widened);
  if (is_matrix(spec)) forms.push_back(Form::Transposed);
  if (is_matrix(spec) && dag::is_half(spec.dtype)) forms.push_back(Form::TransposedWidened);
  return forms;
}

uint64_t bytes_of(const dag::TensorSpec& spec, Form form) {
  return static_cast<uint64_t>(spec.bytes().value) * (is_widened(form) ? 2 : 1);
}

Status read_form(const data::File& file, const StoredTensor& tensor, Form form, const data::ByteSink& sink) {
  const data::ByteSink last = is_widened(form) ? widening(tensor.spec.dtype, sink) : sink;
  return is_transposed(form) ? read_transposed(file, tensor, last) : read_stored(file, tensor, last);
}

Result<std::vector<Digest>> digests_of(const data::File& file, const StoredTensor& tensor,
                                       const std::stop_token& stop) {
  std::vector<Digest> digests;
  const std::vector<Form> forms = forms_of(tensor.spec);
  for (const Form order : {Form::AsStored, Form::Transposed}) {
    if (std::find(forms.begin(), forms.end(), order) == forms.end()) continue;
    storage::Sha256 stored, wide;
    const data::ByteSink to_wide = [&](std::span<const std::byte> piece) {
      wide.update(piece);
      return Status{};
    };
    const bool is_half = dag::is_half(tensor.spec.dtype);
    const data::ByteSink widen = widening(tensor.spec.dtype, to_wide);
    WEFT_TRY_STATUS(read_form(file, tensor, order, [&](std::span<const std::byte> piece) -> Status {
      if (stop.stop_requested()) return fail(ErrorCode::Cancelled, "the search for weights was stopped");
      stored.update(piece);
      return is_half ? widen(piece) : Status{};
    }));
    digests.push_back(*digest_from_hex(stored.hex()));
    if (is_half) digests.push_back(*digest_from_hex(wide.hex()));
  }
  return digests;
}

}  // namespace weft::weights
