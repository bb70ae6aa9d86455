#include "cli/peer_control.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/printable.h"
#include "storage/files.h"

namespace weft::cli {
namespace fs = std::filesystem;
namespace {

constexpr size_t kRequestMax = 64, kAnswerMax = 512;  // bytes
constexpr size_t kCallersMax = 8;
constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};
constexpr const char* kSuffix = ".sock";
constexpr size_t kSocketsMax = 4096;

tl::unexpected<Error> cannot(const fs::path& path, std::string_view what) {
  return fail(ErrorCode::Unavailable,
              fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
}

struct Descriptor {
  int number;
  explicit Descriptor(int opened) : number(opened) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

// A socket's address holds 107 characters, and a folder's path may have more: it is named by a descriptor of
// its folder, for as long as this lives.
class SocketAddress {
 public:
  explicit SocketAddress(const fs::path& path)
      : folder_(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    address_.sun_family = AF_UNIX;
    const std::string name = fmt::format("/proc/self/fd/{}/{}", folder_.number, path.filename().string());
    fits_ = name.size() < sizeof address_.sun_path;
    if (fits_)
      std::memcpy(address_.sun_path, name.c_str(), name.size());
    else
      errno = ENAMETOOLONG;
  }
  bool valid() const { return folder_.number >= 0 && fits_; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return sizeof address_; }

 private:
  Descriptor folder_;
  sockaddr_un address_{};
  bool fits_ = false;
};

// Only its user's, whoever made it.
Status make_private(const fs::path& folder) {
  storage::Files files;
  WEFT_TRY_STATUS(files.make_directories(folder));
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return cannot(folder, "look at it");
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid())
    return fail(ErrorCode::PermissionDenied, folder.string() + " is not this user's folder");
  if ((status.st_mode & 077) != 0 && ::chmod(folder.c_str(), 0700) != 0)
    return cannot(folder, "close it to others");
  return {};
}

bool is_own(int descriptor) {
  ucred who{};
  socklen_t size = sizeof who;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         (who.uid == ::geteuid() || who.uid == 0);
}

// False: nobody listens there any more, and the name is gone.
Result<bool> reach(const Descriptor& socket, const fs::path& path) {
  if (socket.number < 0) return cannot(path, "make a socket");
  ::setsockopt(socket.number, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  ::setsockopt(socket.number, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  const SocketAddress address(path);
  if (!address.valid()) return cannot(path, "reach it");
  if (::connect(socket.number, address.get(), address.size()) == 0) return true;
  if (errno != ECONNREFUSED && errno != ENOENT) return cannot(path, "reach it");
  ::unlink(path.c_str());
  return false;
}

std::vector<fs::path> sockets_in(const fs::path& folder) {
  storage::Files files;
  const auto names = files.list(folder, kSocketsMax);
  std::vector<fs::path> sockets;
  for (const std::string& name : names.value_or(std::vector<std::string>{}))
    if (name.ends_with(kSuffix)) sockets.push_back(folder / name);
  return sockets;
}

// As it comes. Nothing: nobody listens there any more.
std::optional<Result<std::string>> ask(const fs::path& path, const std::string& request) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto reached = reach(socket, path);
  if (!reached) return fail(reached.error());
  if (!*reached) return std::nullopt;
  const int descriptor = socket.number;
  if (::geteuid() != 0 && !is_own(descriptor))
    return fail(ErrorCode::PermissionDenied, path.string() + ": another user listens there");
  if (::send(descriptor, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return cannot(path, "ask it");
  std::string answer;
  char bytes[kAnswerMax];
  while (answer.size() < kAnswerMax) {
    const ssize_t size = ::recv(descriptor, bytes, sizeof bytes, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return cannot(path, "hear from it");
    if (size == 0) break;
    answer.append(bytes, static_cast<size_t>(size));
  }
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  return answer;
}

// What listens there, its descriptor.
Result<int> listen_in(const fs::path& folder, const std::string& name) {
  WEFT_TRY_STATUS(make_private(folder));
  for (const fs::path& other : sockets_in(folder))  // those of killed processes do not pile up
    (void)reach(Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), other);
  // It has its name once it listens: what has a name and does not listen is nobody's any more.
  const fs::path path = folder / (name + kSuffix), before = folder / (name + ".new");
  const SocketAddress address(before);
  if (!address.valid()) return cannot(path, "name a socket");
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return cannot(path, "make a socket");
  ::unlink(before.c_str());
  if (::bind(descriptor, address.get(), address.size()) != 0 || ::chmod(before.c_str(), 0600) != 0 ||
      ::listen(descriptor, kCallersMax) != 0 || ::rename(before.c_str(), path.c_str()) != 0) {
    const auto error = cannot(path, "listen");
    ::unlink(before.c_str());
    ::close(descriptor);
    return error;
  }
  return descriptor;
}

}  // namespace

std::string to_text(const ControlRequest& request) {
  switch (request.kind) {
    case ControlRequest::Kind::Pause:
      return request.length
                 ? fmt::format("pause {}\n", std::chrono::ceil<std::chrono::seconds>(*request.length).count())
                 : "pause\n";
    case ControlRequest::Kind::Resume:
      return "resume\n";
    case ControlRequest::Kind::Status:
      return "status\n";
  }
  return "\n";
}

Result<ControlRequest> parse_control_request(std::string_view line) {
  using Kind = ControlRequest::Kind;
  if (line == "pause") return ControlRequest{.kind = Kind::Pause};
  if (line == "resume") return ControlRequest{.kind = Kind::Resume};
  if (line == "status") return ControlRequest{.kind = Kind::Status};
  constexpr std::string_view kPause = "pause ";
  constexpr int64_t kSecondsMax = int64_t{3650} * 24 * 3600;
  int64_t length = 0;
  const char* end = line.data() + line.size();
  if (line.starts_with(kPause)) {
    const auto parsed = std::from_chars(line.data() + kPause.size(), end, length);
    if (parsed.ec == std::errc() && parsed.ptr == end && length > 0 && length <= kSecondsMax)
      return ControlRequest{.kind = Kind::Pause, .length = std::chrono::seconds(length)};
  }
  return fail(ErrorCode::InvalidArgument, "not understood: pause, pause SECONDS, resume or status");
}

std::vector<fs::path> control_folders() {
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (folder.is_absolute() && std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(folder);
  };
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value != nullptr ? value : "");
  };
  const fs::path usual = fmt::format("/run/user/{}", ::geteuid());
  const fs::path named = variable("XDG_RUNTIME_DIR");
  if (!named.empty()) add(named / "weft");
  if (!folders.empty() && named != usual) return folders;  // somebody chose it, for these peers alone
  std::error_code ignored;
  if (fs::is_directory(usual, ignored)) add(usual / "weft");
  if (!variable("XDG_STATE_HOME").empty())
    add(variable("XDG_STATE_HOME") / "weft");
  else if (!variable("HOME").empty())
    add(variable("HOME") / ".local/state/weft");
  return folders;
}

// ---- weft join

struct PeerControl::Caller {
  int descriptor = -1;
  std::string line;
  std::unique_ptr<net::Loop::Watch> watch;
};

Result<std::unique_ptr<PeerControl>> PeerControl::open(const std::vector<fs::path>& folders,
                                                       const std::string& process, const std::string& peer) {
  Error error{ErrorCode::NotFound, "there is no place for its socket: set XDG_RUNTIME_DIR or HOME"};
  for (const fs::path& folder : folders) {
    const auto descriptor = listen_in(folder, process);
    if (descriptor)
      return std::unique_ptr<PeerControl>(new PeerControl(*descriptor, folder / (process + kSuffix), peer));
    error = descriptor.error();
  }
  return fail(error);
}

PeerControl::PeerControl(int descriptor, fs::path path, const std::string& peer)
    : descriptor_(descriptor), path_(std::move(path)), peer_(printable(peer)) {}

PeerControl::~PeerControl() {
  detach();
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

void PeerControl::attach(net::Loop& loop, Answer answer) {
  detach();
  loop_ = &loop;
  answer_ = std::move(answer);
  watch_ = loop.watch_readable(descriptor_, [this] { accept(); });
}

void PeerControl::detach() {
  watch_.reset();
  while (!callers_.empty()) drop(callers_.front());
  loop_ = nullptr;
}

void PeerControl::accept() {
  for (;;) {
    const int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) return;
    if (!is_own(descriptor)) {
      ::close(descriptor);
      continue;
    }
    if (callers_.size() == kCallersMax) drop(callers_.front());  // who has said least for longest
    Caller& caller = callers_.emplace_back();
    caller.descriptor = descriptor;
    caller.watch = loop_->watch_readable(descriptor, [this, &caller] { read(caller); });
  }
}

void PeerControl::read(Caller& caller) {
  char bytes[kRequestMax];
  const ssize_t size = ::recv(caller.descriptor, bytes, sizeof bytes, 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return drop(caller);
  caller.line.append(bytes, static_cast<size_t>(size));
  const size_t end = caller.line.find('\n');
  if (end == std::string::npos && caller.line.size() < kRequestMax) return;
  const auto request = parse_control_request(caller.line.substr(0, end));
  std::string answer = request ? answer_(*request) : request.error().message;
  answer = (peer_ + '\t' + answer).substr(0, kAnswerMax - 1) + "\n";
  (void)::send(caller.descriptor, answer.data(), answer.size(), MSG_NOSIGNAL);  // fits any socket's buffer
  drop(caller);
}

void PeerControl::drop(Caller& caller) {
  caller.watch.reset();  // before its descriptor: another one may get the number
  ::close(caller.descriptor);
  callers_.remove_if([&](const Caller& one) { return &one == &caller; });
}

// ---- weft pause

namespace {
ControlAnswer answer_of(const std::string& process, const Result<std::string>& line) {
  if (!line) return {process, process, fail(line.error())};
  const size_t tab = line->find('\t');
  if (tab == std::string::npos || tab == 0) return {process, process, printable(*line)};
  return {process, printable(line->substr(0, tab)), printable(line->substr(tab + 1))};
}
}  // namespace

std::vector<ControlAnswer> ask_peers(const std::vector<fs::path>& folders, const ControlRequest& request) {
  std::vector<ControlAnswer> answers;
  for (const fs::path& folder : folders)
    for (const fs::path& path : sockets_in(folder)) {
      const auto line = ask(path, to_text(request));
      if (line) answers.push_back(answer_of(path.stem().string(), *line));
    }
  return answers;
}

}  // namespace weft::cli
