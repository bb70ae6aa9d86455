#include "data/npy.h"

#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace weft::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Description {
  std::string_view text;
  dag::DType dtype;
};
constexpr Description kDescriptions[] = {
    {"<f4", dag::DType::F32}, {"<f8", dag::DType::F64}, {"<f2", dag::DType::F16}, {"|i1", dag::DType::I8},
    {"|u1", dag::DType::U8},  {"<i2", dag::DType::I16}, {"<u2", dag::DType::U16}, {"<i4", dag::DType::I32},
    {"<u4", dag::DType::U32}, {"<i8", dag::DType::I64}, {"<u8", dag::DType::U64}, {"|b1", dag::DType::Bool},
};

// A literal of the few kinds that numpy writes: 'text', True or False, (1, 2,).
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  bool accept(char c) {
    skip_blanks();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool accept_word(std::string_view word) {
    skip_blanks();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::optional<std::string_view> quoted() {
    skip_blanks();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return std::nullopt;
    const size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) return std::nullopt;
    const auto inside = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return inside;
  }
  std::optional<dag::Shape> tuple() {
    if (!accept('(')) return std::nullopt;
    dag::Shape shape;
    while (!accept(')')) {
      skip_blanks();
      int64_t dim = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), dim);
      if (error != std::errc() || dim < 0 || shape.size() == 32) return std::nullopt;
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      accept_word("L");  // Python 2 wrote long integers so
      shape.push_back(dim);
      if (!accept(',')) {
        if (!accept(')')) return std::nullopt;
        break;
      }
    }
    return shape;
  }
  bool at_end() {
    skip_blanks();
    return text_.empty();
  }

 private:
  void skip_blanks() {
    const size_t first = text_.find_first_not_of(" \t\n");
    text_.remove_prefix(first == std::string_view::npos ? text_.size() : first);
  }
  std::string_view text_;
};

tl::unexpected<Error> malformed() {
  return fail(ErrorCode::Corrupted,
              "its .npy header cannot be understood; write it again with np.save or np.savez");
}

Result<dag::DType> parse_description(std::string_view text) {
  for (const auto& row : kDescriptions)
    if (row.text == text || (row.text[0] == '|' && text.size() == 3 && text.substr(1) == row.text.substr(1)))
      return row.dtype;
  if (text.starts_with('>'))
    return fail(ErrorCode::Unsupported, "dtype '" + std::string(text) +
                                            "' is big-endian; convert it with .astype('<" +
                                            std::string(text.substr(1)) + "')");
  return fail(ErrorCode::Unsupported,
              "dtype '" + std::string(text.substr(0, 32)) +
                  "' is not read; convert it with .astype(np.float32) or .astype(np.int64)");
}

}  // namespace

Result<dag::TensorSpec> parse_npy_dictionary(std::string_view text) {
  Parser parser(text);
  std::optional<std::string_view> description;
  std::optional<bool> fortran;
  std::optional<dag::Shape> shape;
  if (!parser.accept('{')) return malformed();
  while (!parser.accept('}')) {
    const auto key = parser.quoted();
    if (!key || !parser.accept(':')) return malformed();
    if (*key == "descr" && !description) {
      if (parser.accept('['))
        return fail(ErrorCode::Unsupported, "its dtype has fields; write each field as an array of its own");
      description = parser.quoted();
      if (!description) return malformed();
    } else if (*key == "fortran_order" && !fortran) {
      if (parser.accept_word("True"))
        fortran = true;
      else if (parser.accept_word("False"))
        fortran = false;
      else
        return malformed();
    } else if (*key == "shape" && !shape) {
      shape = parser.tuple();
      if (!shape) return malformed();
    } else {
      return malformed();
    }
    if (!parser.accept(',')) {
      if (!parser.accept('}')) return malformed();
      break;
    }
  }
  if (!parser.at_end() || !description || !fortran || !shape) return malformed();
  if (*fortran)
    return fail(ErrorCode::Unsupported, "is in Fortran order; write it with np.ascontiguousarray(...)");
  WEFT_TRY(const auto dtype, parse_description(*description));
  WEFT_TRY_STATUS(dag::checked_element_count(*shape));
  return dag::TensorSpec{dtype, std::move(*shape)};
}

Result<NpyHeader> read_npy_header(ByteStream& stream) {
  std::array<std::byte, 8> head{};
  WEFT_TRY_STATUS(stream.read(head));
  if (std::memcmp(head.data(), kMagic.data(), kMagic.size()) != 0)
    return fail(ErrorCode::Corrupted, "is not a .npy array; write it with np.savez");
  const int major = static_cast<int>(head[6]);
  if (major < 1 || major > 3)
    return fail(ErrorCode::Unsupported, "is of .npy version " + std::to_string(major) + "; 1 to 3 are read");
  const size_t length_size = major == 1 ? 2 : 4;
  uint32_t length = 0;
  WEFT_TRY_STATUS(stream.read(std::as_writable_bytes(std::span(&length, 1)).first(length_size)));
  if (length > kNpyHeaderMax)
    return fail(ErrorCode::Unsupported, "has a header of " + std::to_string(length) + " bytes; at most " +
                                            std::to_string(kNpyHeaderMax) + " are read");
  std::string text(length, '\0');
  WEFT_TRY_STATUS(stream.read(std::as_writable_bytes(std::span(text))));
  NpyHeader header;
  WEFT_TRY(header.spec, parse_npy_dictionary(text));
  header.size = head.size() + length_size + length;
  return header;
}

std::string npy_header(const dag::TensorSpec& spec) {
  std::string_view description;
  for (const auto& row : kDescriptions)
    if (row.dtype == spec.dtype) description = row.text;
  WEFT_CHECK_MSG(!description.empty(), "numpy has no such dtype");
  std::string text = "{'descr': '" + std::string(description) + "', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < spec.shape.size(); ++i) text += (i ? ", " : "") + std::to_string(spec.shape[i]);
  text += spec.shape.size() == 1 ? ",), }" : "), }";
  const size_t before = kMagic.size() + 4;
  while ((before + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace weft::data
