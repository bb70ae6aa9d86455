// Tables of text, record by record (RFC 4180). Lines end in LF, CRLF or CR; a byte order mark of UTF-8 is
// passed over; blanks around a field are no part of it unless quotes say so. Takes memory for one record.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/file.h"

namespace weft::data {

inline constexpr size_t kCsvRecordMax = size_t{1} << 20;  // bytes

// Whether a field is neither a number nor missing.
bool is_csv_text(std::string_view field, char decimal = '.');

class CsvReader {
 public:
  CsvReader(std::shared_ptr<const File> file, char separator)
      : file_(std::move(file)), separator_(separator) {}

  // The next record that is no empty line; false at the end. Corrupted, Unsupported, ResourceExhausted, with
  // file and row.
  Result<bool> next();

  size_t size() const { return ends_.size(); }
  std::string_view field(size_t index) const;
  // Of the record: lines are counted in a file with one record a line, from 1 with the header.
  uint64_t row() const { return row_; }

  // An error of this record: "<file>: row 3: <what>".
  tl::unexpected<Error> error(ErrorCode code, const std::string& what) const;

 private:
  Result<std::optional<char>> take();
  Result<std::optional<char>> peek();
  Status fill();
  Status begin();
  Result<bool> read_record();
  Status read_quoted();
  Status read_plain(char first);
  Status add(char c);
  // After a field: whether another one follows in the record.
  Result<bool> is_followed();
  void end_field(size_t begin, bool is_quoted);

  std::shared_ptr<const File> file_;
  char separator_;
  std::vector<char> buffer_;
  size_t used_ = 0;      // of the buffer
  uint64_t offset_ = 0;  // of what the buffer is filled with next
  bool has_begun_ = false;
  uint64_t row_ = 0;
  std::string text_;  // the fields of the record, one after the other
  struct Extent {
    size_t begin, end;
  };
  std::vector<Extent> ends_;
};

}  // namespace weft::data
