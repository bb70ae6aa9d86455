#include "data/csv.h"

#include <algorithm>

#include "data/data_spec.h"

namespace weft::data {
namespace {

constexpr size_t kBufferSize = size_t{256} << 10;

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_line_end(char c) { return c == '\n' || c == '\r'; }

}  // namespace

std::string_view CsvReader::field(size_t index) const {
  return std::string_view(text_).substr(ends_[index].begin, ends_[index].end - ends_[index].begin);
}

tl::unexpected<Error> CsvReader::error(ErrorCode code, const std::string& what) const {
  return file_->error(code, "row " + std::to_string(row_) + ": " + what);
}

Status CsvReader::fill() {
  const uint64_t size = std::min<uint64_t>(kBufferSize, file_->size() - offset_);
  buffer_.resize(static_cast<size_t>(size));
  used_ = 0;
  WEFT_TRY_STATUS(file_->read_at(offset_, std::as_writable_bytes(std::span(buffer_))));
  offset_ += size;
  return {};
}

Result<std::optional<char>> CsvReader::peek() {
  if (used_ == buffer_.size()) {
    if (offset_ == file_->size()) return std::nullopt;
    WEFT_TRY_STATUS(fill());
  }
  return std::optional(buffer_[used_]);
}

Result<std::optional<char>> CsvReader::take() {
  WEFT_TRY(const std::optional<char> c, peek());
  if (c) ++used_;
  return c;
}

Status CsvReader::begin() {
  has_begun_ = true;
  if (file_->size() == 0) return {};
  WEFT_TRY_STATUS(fill());
  const std::string_view start(buffer_.data(), std::min<size_t>(buffer_.size(), 3));
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF"))
    return file_->error(ErrorCode::Unsupported, "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 " +
                                                    file_->path().filename().string() + " > utf8.csv");
  if (start == "\xEF\xBB\xBF") used_ = 3;
  return {};
}

Status CsvReader::add(char c) {
  if (c == '\0')
    return error(ErrorCode::Corrupted, "has a zero byte, which no text has; is it another kind of file?");
  if (text_.size() >= kCsvRecordMax)
    return error(ErrorCode::ResourceExhausted, "is longer than " + std::to_string(kCsvRecordMax) +
                                                   " bytes; is a quote not closed, or is it no table?");
  text_ += c;
  return {};
}

void CsvReader::end_field(size_t begin, bool is_quoted) {
  size_t end = text_.size();
  while (!is_quoted && end > begin && is_blank(text_[end - 1])) --end;
  while (!is_quoted && begin < end && is_blank(text_[begin])) ++begin;
  ends_.push_back({begin, end});
}

Status CsvReader::read_quoted() {
  const size_t begin = text_.size();
  for (;;) {
    WEFT_TRY(const std::optional<char> c, take());
    if (!c) return error(ErrorCode::Corrupted, "a quote is not closed before the file ends");
    if (*c != '"') {
      WEFT_TRY_STATUS(add(*c));
      continue;
    }
    WEFT_TRY(const std::optional<char> after, peek());
    if (after != '"') break;
    ++used_;
    WEFT_TRY_STATUS(add('"'));
  }
  end_field(begin, true);
  for (;;) {  // blanks behind it
    WEFT_TRY(const std::optional<char> c, peek());
    if (!c || *c == separator_ || is_line_end(*c)) return {};
    if (!is_blank(*c))
      return error(ErrorCode::Corrupted,
                   "something follows a quoted field; a quote within one is written twice (\"\")");
    ++used_;
  }
}

Status CsvReader::read_plain(char first) {
  const size_t begin = text_.size();
  for (std::optional<char> c = first; c && *c != separator_ && !is_line_end(*c);) {
    WEFT_TRY_STATUS(add(*c));
    ++used_;
    WEFT_TRY(c, peek());
  }
  end_field(begin, false);
  return {};
}

Result<bool> CsvReader::is_followed() {
  WEFT_TRY(const std::optional<char> c, take());
  if (!c) return false;
  if (*c == separator_) return true;
  if (*c == '\r') {
    WEFT_TRY(const std::optional<char> after, peek());
    if (after == '\n') ++used_;
  }
  return false;
}

Result<bool> CsvReader::read_record() {
  WEFT_TRY(std::optional<char> c, peek());
  if (!c) return false;
  ++row_;
  text_.clear();
  ends_.clear();
  for (;;) {
    if (c == '"') {
      ++used_;
      WEFT_TRY_STATUS(read_quoted());
    } else {
      WEFT_TRY_STATUS(read_plain(c.value_or('\n')));
    }
    if (ends_.size() > kFieldsMax)
      return error(ErrorCode::ResourceExhausted, "has more than " + std::to_string(kFieldsMax) + " fields");
    WEFT_TRY(const bool is_more, is_followed());
    if (!is_more) return true;
    WEFT_TRY(c, peek());
  }
}

Result<bool> CsvReader::next() {
  if (!has_begun_) WEFT_TRY_STATUS(begin());
  for (;;) {
    WEFT_TRY(const bool is_there, read_record());
    if (!is_there) return false;
    if (size() > 1 || !field(0).empty()) return true;  // else an empty line
  }
}

}  // namespace weft::data
