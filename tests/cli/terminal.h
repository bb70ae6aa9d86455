// A pseudo terminal to write to, and what a person sees on it: rows of characters, one for each byte of
// ASCII.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace weft::test {

class Terminal {
 public:
  explicit Terminal(uint16_t columns);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::FILE* file() { return file_; }
  void resize(uint16_t columns);
  // What was written since the last call; it is shown, too. Often enough, for a terminal holds little.
  std::string read();

  // Without trailing spaces; the last one holds the cursor.
  const std::vector<std::string>& rows() const { return rows_; }
  // How often writing went on in the next row because a line was too long, and how often the last row was
  // empty although something had stood there: what the eye sees as flicker.
  int wraps() const { return wraps_; }
  int blanks() const { return blanks_; }

 private:
  void show(std::string_view bytes);
  void put(char c);

  int master_ = -1;
  std::FILE* file_ = nullptr;
  uint16_t columns_;
  std::vector<std::string> rows_{""};
  size_t at_ = 0;  // column
  int wraps_ = 0, blanks_ = 0;
};

}  // namespace weft::test
