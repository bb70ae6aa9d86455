// The lines of a file that are not blank, and what a JSON object on one says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/file.h"
#include "text/chat.h"

namespace weft::data {

inline constexpr size_t kJsonLineMax = size_t{16} << 20;  // bytes, as a tokenizer takes at once

// Of a file that gzip compressed, too. Belongs to one thread; takes a little more than the longest line of
// memory.
class JsonLines {
 public:
  explicit JsonLines(std::shared_ptr<const File> file) : file_(std::move(file)) {}

  // The next line that is not blank. False: there is none. OutOfRange: it is longer than kJsonLineMax.
  // Corrupted: what is compressed is damaged.
  Result<bool> next();
  std::string_view line() const { return line_; }  // until the next call of next()
  uint64_t number() const { return number_; }      // the first is 1

  // "<path>: line 3: <what>".
  tl::unexpected<Error> error(ErrorCode code, const std::string& what) const;

 private:
  Result<bool> next_line();
  Status fill();

  std::shared_ptr<const File> file_;
  std::unique_ptr<ByteStream> stream_;  // with the first line
  bool is_read_ = false;                // all of it
  std::string held_;                    // of the file, up to there
  size_t at_ = 0;                       // in held_: where the next line begins
  uint64_t number_ = 0;
  std::string_view line_;
};

// These text fields of an object. Corrupted: it is no JSON object. NotFound: it lacks one; the message names
// those that it has. InvalidArgument: one is no text. OutOfRange: it is nested deeply, or has a million
// values.
Result<std::vector<std::string>> texts_of_json(std::string_view object,
                                               const std::vector<std::string>& fields);
// A list of messages: {"role", "content"}, where a content may be a list of {"type": "text", "text"}; or
// {"from", "value"} with the roles human and gpt. InvalidArgument: it is something else.
Result<std::vector<text::ChatMessage>> messages_of_json(std::string_view object, const std::string& field);

}  // namespace weft::data
