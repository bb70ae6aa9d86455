// How one's own `weft join` processes on this machine are told to pause: each listens at a socket in the file
// system, NAME.sock in a folder that only its user may enter. One request a connection, a line each way:
//
//   pause SECONDS | pause | resume | status      ->  the peer's name, a tab, what it does now, for people
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "net/loop.h"

namespace weft::cli {

struct ControlRequest {
  enum class Kind : uint8_t { Pause, Resume, Status } kind = Kind::Status;
  std::optional<Duration> length{};  // of a pause; nothing: until it is resumed
};
std::string to_text(const ControlRequest& request);
// InvalidArgument: none of these.
Result<ControlRequest> parse_control_request(std::string_view line);

// Where the sockets may lie, the first choice first: $XDG_RUNTIME_DIR/weft, and nowhere else if that is not
// the usual one; /run/user/UID/weft where there is such a folder, $XDG_STATE_HOME/weft or
// ~/.local/state/weft.
std::vector<std::filesystem::path> control_folders();

// The side of `weft join`. Answers while it is attached to a loop, on it.
class PeerControl {
 public:
  // In the first of the folders where that can be; `process` is a file's name, of this process alone, and
  // `peer` what the peer is called. Errors: of the last of them.
  static Result<std::unique_ptr<PeerControl>> open(const std::vector<std::filesystem::path>& folders,
                                                   const std::string& process, const std::string& peer);
  ~PeerControl();
  PeerControl(const PeerControl&) = delete;
  PeerControl& operator=(const PeerControl&) = delete;

  using Answer = std::function<std::string(const ControlRequest&)>;
  void attach(net::Loop& loop, Answer answer);
  void detach();
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Caller;
  PeerControl(int descriptor, std::filesystem::path path, const std::string& peer);
  void accept();
  void read(Caller& caller);
  void drop(Caller& caller);

  const int descriptor_;
  const std::filesystem::path path_;
  const std::string peer_;
  net::Loop* loop_ = nullptr;
  Answer answer_;
  std::list<Caller> callers_;
  std::unique_ptr<net::Loop::Watch> watch_;
};

// The side of `weft pause`: what each process that listens in the folders says. Sockets of processes that are
// no more are removed.
struct ControlAnswer {
  std::string process;  // the socket's name, without .sock
  std::string name;     // the peer's; where it says none, as versions before did, the process
  Result<std::string> said;
};
std::vector<ControlAnswer> ask_peers(const std::vector<std::filesystem::path>& folders,
                                     const ControlRequest& request);

}  // namespace weft::cli
