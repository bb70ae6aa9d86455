#include "tests/cli/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace weft::test {

Terminal::Terminal(uint16_t columns)
    : master_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)), columns_(columns) {
  setenv("TERM", "xterm", 1);
  if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) {
    ADD_FAILURE() << "no pseudo terminal";
    return;
  }
  const int slave = open(ptsname(master_), O_RDWR | O_NOCTTY);
  resize(columns);
  file_ = fdopen(slave, "w");
}

Terminal::~Terminal() {
  if (file_ != nullptr) std::fclose(file_);
  if (master_ >= 0) close(master_);
}

void Terminal::resize(uint16_t columns) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  EXPECT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  columns_ = columns;
}

std::string Terminal::read() {
  std::string all;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(master_, bytes, sizeof bytes)) > 0;) all.append(bytes, count);
  show(all);
  return all;
}

void Terminal::put(char c) {
  if (at_ == columns_) {
    ++wraps_;
    rows_.emplace_back();
    at_ = 0;
  }
  std::string& row = rows_.back();
  row.resize(std::max(row.size(), at_ + 1), ' ');
  row[at_++] = c;
}

void Terminal::show(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool was_blank = rows_.back().empty();
    if (bytes[i] == '\r') {
      at_ = 0;
    } else if (bytes[i] == '\n') {
      rows_.emplace_back();
    } else if (bytes.substr(i, 3) == "\033[K") {
      rows_.back().resize(std::min(rows_.back().size(), at_));
      blanks_ += rows_.back().empty() && !was_blank ? 1 : 0;
      i += 2;
    } else if (static_cast<unsigned char>(bytes[i]) < 0x20) {
      ADD_FAILURE() << "a control character: " << testing::PrintToString(std::string(bytes.substr(i, 8)));
    } else {
      put(bytes[i]);
    }
  }
}

}  // namespace weft::test
