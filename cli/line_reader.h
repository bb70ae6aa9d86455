// Lines of a descriptor, a terminal, a pipe or a file, while a loop goes on.
#pragma once

#include <functional>
#include <string>

#include "net/loop.h"

namespace weft::cli {

class LineReader {
 public:
  static constexpr size_t kLineMax = 1 << 20;  // bytes

  // The descriptor is not owned, and nobody else reads from it.
  LineReader(net::Loop& loop, int descriptor) : loop_(loop), descriptor_(descriptor) {}

  enum class State : uint8_t { Line, End, Stopped, TooLong };
  // The next line, without its end; at the end of the input what stands behind the last one. Stopped:
  // `stopped` said so, which is asked after whatever the loop does.
  State next(std::string& line, const std::function<bool()>& stopped);

 private:
  bool take_line(std::string& line);
  bool is_ready() const;
  void wait(const std::function<bool()>& stopped);
  void read_some();

  net::Loop& loop_;
  const int descriptor_;
  std::string buffer_;
  bool is_at_end_ = false;
};

}  // namespace weft::cli
