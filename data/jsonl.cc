// Documents as samples of sequence_length tokens. At each position stand a token and, as its target, the one
// behind it in the same document: -100 where that is not to be learnt, or where there is no document. A text
// longer than a sample goes on in the next one; of a prompt with its completion, and of a conversation, the
// end is left out then. All of it is kept as tokens, four bytes each.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/check.h"
#include "data/dataset.h"
#include "data/json_documents.h"
#include "data/json_lines.h"

namespace weft::data {
namespace {

constexpr int64_t kMaskLengthMax = 1 << 14;      // a GiB of mask
constexpr int64_t kNotLearnt = -100;             // as of `loss.ignore_index`
constexpr uint32_t kLearnt = uint32_t{1} << 31;  // beside a token's number

// Positions of a document that lie side by side.
struct Piece {
  uint64_t first = 0;  // token
  uint32_t length = 0;
  uint32_t line = 0;  // of the file
};

// Tokens with kLearnt. In blocks, for a vector that grows has twice what it holds and more.
class TokenStore {
 public:
  uint64_t size() const { return size_; }
  uint64_t bytes() const { return blocks_.size() * kBlock * sizeof(uint32_t); }
  uint32_t operator[](uint64_t at) const { return blocks_[static_cast<size_t>(at / kBlock)][at % kBlock]; }
  void push_back(uint32_t token) {
    if (size_ == blocks_.size() * kBlock) blocks_.push_back(std::make_unique<uint32_t[]>(kBlock));
    blocks_.back()[size_++ % kBlock] = token;
  }
  // Takes away what is behind the first `size`. REQUIRES: there are as many.
  void shorten(uint64_t size) {
    size_ = size;
    blocks_.resize(static_cast<size_t>((size + kBlock - 1) / kBlock));
  }

 private:
  static constexpr uint64_t kBlock = 1 << 16;
  std::vector<std::unique_ptr<uint32_t[]>> blocks_;
  uint64_t size_ = 0;
};

struct Documents {
  TokenStore tokens{};
  std::vector<Piece> pieces{};
  std::vector<uint32_t> samples{0};  // where each begins, in pieces; behind the last, where that ends
  uint64_t bytes() const {
    return tokens.bytes() + pieces.capacity() * sizeof(Piece) + samples.capacity() * sizeof(uint32_t);
  }
};

enum class Kind : uint8_t { Tokens, Targets, Mask, Positions, CausalMask };
constexpr std::pair<std::string_view, Kind> kColumns[] = {{"tokens", Kind::Tokens},
                                                          {"targets", Kind::Targets},
                                                          {"attention_mask", Kind::Mask},
                                                          {"positions", Kind::Positions},
                                                          {"causal_mask", Kind::CausalMask}};

bool is_named(const JsonlSpec& spec, std::string_view column) {
  return std::find(spec.columns.begin(), spec.columns.end(), column) != spec.columns.end();
}
// The mask is made only for whoever names it: it is as long as the square of the others.
bool is_wanted(const JsonlSpec& spec, std::string_view column, Kind kind) {
  return is_named(spec, column) || (spec.columns.empty() && kind != Kind::CausalMask);
}

class JsonlDataset final : public Dataset {
 public:
  JsonlDataset(const JsonlSpec& spec, Documents documents, uint32_t padding, std::vector<std::string> notes)
      : documents_(std::move(documents)),
        length_(static_cast<size_t>(spec.sequence_length)),
        padding_(padding),
        notes_(std::move(notes)) {
    for (const auto& [name, kind] : kColumns) {
      if (!is_wanted(spec, name, kind)) {
        others_.emplace_back(name);
        continue;
      }
      const int64_t length = spec.sequence_length;
      columns_.push_back({std::string(name), kind == Kind::CausalMask
                                                 ? dag::TensorSpec{dag::DType::F32, {1, length, length}}
                                                 : dag::TensorSpec{dag::DType::I64, {length}}});
      kinds_.push_back(kind);
    }
  }

  std::span<const Column> columns() const override { return columns_; }
  std::span<const std::string> others() const override { return others_; }
  std::span<const std::string> notes() const override { return notes_; }
  uint64_t resident_bytes() const override { return documents_.bytes(); }
  uint32_t sample_count() const override { return static_cast<uint32_t>(documents_.samples.size() - 1); }
  bool is_finite(size_t /*column*/) const override { return true; }
  std::string place_of(uint64_t sample) const override {
    const auto pieces = pieces_of(static_cast<size_t>(sample));
    const auto first = std::to_string(pieces.front().line), last = std::to_string(pieces.back().line);
    return first == last ? "line " + first : "lines " + first + " to " + last;
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < columns_.size());
    const auto size = static_cast<size_t>(columns_[column].sample.bytes().value);
    WEFT_CHECK(out.size() == samples.size() * size);
    for (const uint32_t sample : samples) {
      if (sample >= sample_count())
        return fail(ErrorCode::OutOfRange,
                    "sample " + std::to_string(sample) + " of " + std::to_string(sample_count()));
      if (kinds_[column] == Kind::CausalMask)
        write_mask(pieces_of(sample), {reinterpret_cast<float*>(out.data()), length_ * length_});
      else
        write(kinds_[column], pieces_of(sample), {reinterpret_cast<int64_t*>(out.data()), length_});
      out = out.subspan(size);
    }
    return {};
  }

 private:
  std::span<const Piece> pieces_of(size_t sample) const {
    const uint32_t first = documents_.samples[sample];
    return std::span(documents_.pieces).subspan(first, documents_.samples[sample + 1] - first);
  }

  void write(Kind kind, std::span<const Piece> pieces, std::span<int64_t> row) const {
    std::fill(row.begin(), row.end(),
              kind == Kind::Tokens    ? int64_t{padding_}
              : kind == Kind::Targets ? kNotLearnt
                                      : 0);
    size_t at = 0;
    for (const Piece& piece : pieces)
      for (uint32_t i = 0; i < piece.length; ++i) row[at++] = value(kind, piece, i);
  }
  // To be added to attention's scores: 0 where a position looks at itself, or at what is before it in its
  // document. What only fills up looks at itself, so that no row is without a place to look at.
  void write_mask(std::span<const Piece> pieces, std::span<float> square) const {
    std::fill(square.begin(), square.end(), std::numeric_limits<float>::lowest());
    size_t at = 0;
    for (const Piece& piece : pieces)
      for (uint32_t i = 0; i < piece.length; ++i, ++at)
        std::fill_n(square.begin() + static_cast<ptrdiff_t>(at * length_ + at - i), i + 1, 0.0F);
    for (; at < length_; ++at) square[at * length_ + at] = 0;
  }

  int64_t value(Kind kind, const Piece& piece, uint32_t i) const {
    const auto& token = documents_.tokens;
    switch (kind) {
      case Kind::Tokens:
        return token[piece.first + i] & ~kLearnt;
      case Kind::Targets: {
        const uint32_t next = token[piece.first + i + 1];
        return (next & kLearnt) != 0 ? int64_t{next & ~kLearnt} : kNotLearnt;
      }
      case Kind::Mask:
        return 1;
      case Kind::Positions:
        return i;
      case Kind::CausalMask:
        break;  // write_mask
    }
    return 0;
  }

  Documents documents_;
  size_t length_;
  uint32_t padding_;
  std::vector<std::string> notes_, others_;
  std::vector<Column> columns_;
  std::vector<Kind> kinds_;  // of the columns
};

// ---- reading

class JsonlReader {
 public:
  JsonlReader(std::shared_ptr<const File> file, const JsonlSpec& spec, const DocumentEncoder& encoder,
              uint64_t resident_max)
      : file_(std::move(file)), spec_(spec), encoder_(encoder), resident_max_(resident_max) {}

  Result<std::unique_ptr<Dataset>> run() {
    WEFT_TRY(const Part part, find_part());
    JsonLines lines(file_);
    for (uint64_t i = 0; i < part.end; ++i) {
      WEFT_TRY(const bool is_there, lines.next());
      if (!is_there) return file_->error(ErrorCode::Corrupted, "has become shorter while it was read");
      if (i >= part.begin) WEFT_TRY_STATUS(add(lines));
    }
    end_sample();
    if (documents_.samples.size() == 1)
      return file_->error(ErrorCode::InvalidArgument,
                          "no document has anything to learn within sequence_length " +
                              std::to_string(spec_.sequence_length) + "; take a longer one");
    return std::make_unique<JsonlDataset>(spec_, std::move(documents_), encoder_.padding(), notes());
  }

 private:
  struct Part {
    uint64_t begin = 0, end = 0;  // documents
  };
  // How many there are is known once all lines were counted.
  Result<Part> find_part() {
    uint64_t count = 0;
    for (JsonLines lines(file_);; ++count) {
      WEFT_TRY(const bool is_there, lines.next());
      if (!is_there) break;
      if (count == 0 && lines.line().find_first_not_of(" \t") != std::string_view::npos &&
          lines.line()[lines.line().find_first_not_of(" \t")] == '[')
        return lines.error(ErrorCode::InvalidArgument,
                           "begins a list; it is to be an object for each document, a line each: "
                           "`jq -c '.[]' " +
                               file_->path().string() + " > documents.jsonl` makes that of a list");
    }
    const uint64_t border =
        count - static_cast<uint64_t>(std::floor(static_cast<double>(count) * spec_.validation));
    const bool is_training = spec_.part == TextSpec::Part::Training;
    const Part part{is_training ? 0 : border, is_training ? border : count};
    if (part.begin == part.end)
      return file_->error(ErrorCode::InvalidArgument,
                          std::string("its ") + (is_training ? "training" : "validation") +
                              " part has no document, of " + std::to_string(count) + " in all");
    return part;
  }

  Status add(const JsonLines& lines) {
    const auto document = encoder_.encode(lines.line());
    if (!document) return lines.error(document.error().code, document.error().message);
    if (lines.number() > UINT32_MAX) return lines.error(ErrorCode::OutOfRange, "is the 2^32nd");
    const uint64_t first = documents_.tokens.size();
    for (size_t i = 0; i < document->tokens.size(); ++i) {
      if (document->tokens[i] >= kLearnt) return lines.error(ErrorCode::OutOfRange, "has a token above 2^31");
      documents_.tokens.push_back(document->tokens[i] | (document->is_learnt[i] ? kLearnt : 0));
    }
    if (documents_.bytes() > resident_max_)
      return lines.error(ErrorCode::ResourceExhausted,
                         "up to here the documents take " + std::to_string(documents_.bytes() >> 20) +
                             " MiB as tokens; of more than that, make a file of tokens: `type: tokens`");
    return add_pieces(lines, first);
  }

  // A document's last token is a target alone.
  Status add_pieces(const JsonLines& lines, uint64_t first) {
    const auto length = static_cast<uint64_t>(spec_.sequence_length);
    const uint64_t end = documents_.tokens.size() - 1;
    const bool goes_on = spec_.form == JsonlSpec::Form::Text;
    if (end - first > length) ++longer_;
    if (!goes_on) {
      const bool is_learnt = is_learnt_within(first, std::min(end, first + length));
      if (!is_learnt) ++left_out_;
      const uint64_t kept = is_learnt ? std::min(end, first + length) + 1 : first;
      documents_.tokens.shorten(kept);
      if (!is_learnt) return {};
    }
    for (uint64_t at = first; at < end; at += length) {
      const auto here = static_cast<uint32_t>(std::min(length, end - at));
      if (spec_.packing == JsonlSpec::Packing::None || in_sample_ + here > length) end_sample();
      documents_.pieces.push_back({at, here, static_cast<uint32_t>(lines.number())});
      in_sample_ += here;
      if (documents_.pieces.size() >= UINT32_MAX)
        return lines.error(ErrorCode::OutOfRange, "more than 2^32 samples; take a longer sequence_length");
      if (!goes_on) break;
    }
    return {};
  }
  bool is_learnt_within(uint64_t first, uint64_t end) const {
    for (uint64_t target = first + 1; target <= end; ++target)
      if ((documents_.tokens[target] & kLearnt) != 0) return true;
    return false;
  }
  void end_sample() {
    in_sample_ = 0;
    const auto pieces = static_cast<uint32_t>(documents_.pieces.size());
    if (documents_.samples.back() != pieces) documents_.samples.push_back(pieces);
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    const std::string count = std::to_string(longer_), length = std::to_string(spec_.sequence_length);
    if (longer_ > 0 && spec_.form != JsonlSpec::Form::Text)
      notes.push_back(count + (longer_ == 1 ? " document is" : " documents are") + " longer than " + length +
                      " tokens; what is behind them is not learnt");
    if (left_out_ > 0)
      notes.push_back(std::to_string(left_out_) + (left_out_ == 1 ? " document is" : " documents are") +
                      " left out: nothing of what is to be learnt lies within the first " + length +
                      " tokens");
    return notes;
  }

  std::shared_ptr<const File> file_;
  const JsonlSpec& spec_;
  const DocumentEncoder& encoder_;
  uint64_t resident_max_;
  Documents documents_;
  uint64_t in_sample_ = 0;  // positions of the sample that is being filled
  uint64_t longer_ = 0, left_out_ = 0;
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_jsonl(const JsonlSpec& spec, const OpenOptions& options) {
  WEFT_TRY(auto file, File::open(spec.path));
  if (spec.sequence_length < 1 || spec.sequence_length > kSequenceLengthMax)
    return file->error(ErrorCode::OutOfRange,
                       "sequence_length must be 1 to " + std::to_string(kSequenceLengthMax));
  if (spec.packing == JsonlSpec::Packing::Apart && !is_named(spec, "causal_mask"))
    return file->error(
        ErrorCode::InvalidArgument,
        "`pack: apart` needs an input of the model that takes the column causal_mask; by `pack: "
        "across` documents of a sample see each other");
  if (spec.sequence_length > kMaskLengthMax && is_named(spec, "causal_mask"))
    return file->error(ErrorCode::OutOfRange,
                       "with causal_mask sequence_length is at most " + std::to_string(kMaskLengthMax));
  WEFT_TRY(const auto encoder, DocumentEncoder::open(spec));
  return JsonlReader(std::move(file), spec, encoder, options.resident_max).run();
}

}  // namespace weft::data
