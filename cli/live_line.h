// One line at the foot of a terminal that is rewritten in place, below lines that stay. It never takes more
// than one row: what does not fit is left out. Each rewriting is one write of the new text over the old one
// and a clearing of the rest, so that nothing flickers; no other escape sequence is used, and none in a file.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace weft::cli {

class LiveLine {
 public:
  explicit LiveLine(std::FILE* out);
  ~LiveLine() { end(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // Whether lines are rewritten at all; in a file or a pipe, and on a terminal that cannot, all lines stay.
  bool is_live() const { return terminal_; }
  bool is_unread() const { return std::ferror(out_) != 0; }  // something could not be written
  void write_line(std::string_view text);                    // one that stays
  // The parts are what the line says, the most important first.
  void rewrite(const std::vector<std::string>& parts);
  void end();  // what the line says stays, and others may write

 private:
  void put(const std::string& text);

  std::FILE* out_;
  bool terminal_;
  std::string shown_;  // of the live line; empty: there is none
};

// The parts up to the last that fits into so many columns, two spaces between them; the first one is cut.
std::string fit(const std::vector<std::string>& parts, size_t columns);
// Without what would move a terminal's cursor or change its state: names come from other people's machines.
std::string printable(std::string_view text);

}  // namespace weft::cli
