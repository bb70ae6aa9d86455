#include "tests/manners/fake_bus.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace weft::test {
namespace {

union Id {  // sd_id128_t
  uint8_t bytes[16];
  uint64_t words[2];
};

// The functions of sd-bus that a server needs.
struct Library {
  void* handle = ::dlopen("libsystemd.so.0", RTLD_NOW | RTLD_LOCAL);
  template <typename F>
  F get(const char* name) const {
    return reinterpret_cast<F>(::dlsym(handle, name));
  }
  using Handler = int (*)(void* message, void* user, void* error);
  int (*make)(void**) = get<int (*)(void**)>("sd_bus_new");
  int (*set_fd)(void*, int, int) = get<int (*)(void*, int, int)>("sd_bus_set_fd");
  int (*set_server)(void*, int, Id) = get<int (*)(void*, int, Id)>("sd_bus_set_server");
  int (*negotiate_fds)(void*, int) = get<int (*)(void*, int)>("sd_bus_negotiate_fds");
  int (*start)(void*) = get<int (*)(void*)>("sd_bus_start");
  int (*add_filter)(void*, void**, Handler,
                    void*) = get<int (*)(void*, void**, Handler, void*)>("sd_bus_add_filter");
  int (*process)(void*, void**) = get<int (*)(void*, void**)>("sd_bus_process");
  int (*wait)(void*, uint64_t) = get<int (*)(void*, uint64_t)>("sd_bus_wait");
  void* (*close)(void*) = get<void* (*)(void*)>("sd_bus_flush_close_unref");
  const char* (*member)(void*) = get<const char* (*)(void*)>("sd_bus_message_get_member");
  const char* (*destination)(void*) = get<const char* (*)(void*)>("sd_bus_message_get_destination");
  int (*auto_start)(void*) = get<int (*)(void*)>("sd_bus_message_get_auto_start");
  int (*read)(void*, const char*, ...) = get<int (*)(void*, const char*, ...)>("sd_bus_message_read");
  int (*reply)(void*, const char*, ...) = get<int (*)(void*, const char*, ...)>("sd_bus_reply_method_return");
  int (*refuse)(void*, const char*, const char*,
                ...) = get<int (*)(void*, const char*, const char*, ...)>("sd_bus_reply_method_errorf");
};
const Library& library() {
  static const Library kLibrary;
  return kLibrary;
}

}  // namespace

struct FakeBus::Server {
  FakeBus& of;

  int refuse(void* message, const char* why) const {
    return library().refuse(message, "org.freedesktop.DBus.Error.ServiceUnknown", "%s", why);
  }
  int inhibit(void* message) const {
    ++of.delays_asked;
    if (of.refuses_delays) return refuse(message, "not allowed");
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return refuse(message, "no pipe");
    {
      MutexLock lock(of.mutex_);
      of.delays_.push_back(ends[0]);  // before the client has its end
    }
    const int answered = library().reply(message, "h", ends[1]);
    ::close(ends[1]);
    return answered;
  }
  int get(void* message) const {
    const char *interface = nullptr, *property = nullptr;
    if (library().read(message, "ss", &interface, &property) < 0) return refuse(message, "no property");
    const std::string_view name = property;
    if (name == "IdleHint") return library().reply(message, "v", "b", static_cast<int>(of.idle));
    if (name == "IdleSinceHintMonotonic") return library().reply(message, "v", "t", of.idle_since.load());
    if (name == "PreparingForSleep")
      return library().reply(message, "v", "b", static_cast<int>(of.about_to_sleep));
    if (name == "ClientCount") return library().reply(message, "v", "i", of.games.load());
    return refuse(message, "no such property");
  }
  int answer(void* message) const {
    const char *called = library().member(message), *service = library().destination(message);
    if (called == nullptr || service == nullptr) return 0;  // no call: that the connection is made
    const std::string_view member = called, to = service;
    if (member == "Hello") return library().reply(message, "s", ":1.1");
    if (library().auto_start(message) != 0) of.started_a_service = true;
    const bool is_logind = to == "org.freedesktop.login1";
    if (is_logind ? !of.has_logind : of.games < 0) return refuse(message, "not running");
    if (is_logind && member == "Inhibit") return inhibit(message);
    return member == "Get" ? get(message) : refuse(message, "no such call");
  }
};

bool FakeBus::is_there() { return library().handle != nullptr; }

FakeBus::FakeBus(const std::filesystem::path& socket)
    : socket_(socket), listening_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", socket.c_str());
  if (::bind(listening_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listening_, 4) != 0)
    std::perror("fake bus");
  thread_ = std::thread([this] { run(); });
}

FakeBus::~FakeBus() {
  ends_ = true;
  thread_.join();
  ::close(listening_);
  MutexLock lock(mutex_);
  for (const int end : delays_) ::close(end);
}

std::string FakeBus::address() const { return "unix:path=" + socket_.string(); }

bool FakeBus::is_delayed() const {
  MutexLock lock(mutex_);
  return std::any_of(delays_.begin(), delays_.end(), [](int number) {
    pollfd end{.fd = number, .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) == 0;  // the other end is open still
  });
}

void FakeBus::run() {
  while (!ends_) {
    pollfd door{.fd = listening_, .events = POLLIN, .revents = 0};
    if (::poll(&door, 1, 20) <= 0) continue;
    const int client = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client >= 0) clients_.emplace_back([this, client] { serve(client); });
  }
  for (std::thread& client : clients_) client.join();
}

void FakeBus::serve(int client) {
  Server server{*this};
  void* bus = nullptr;
  library().make(&bus);
  library().set_fd(bus, client, client);
  library().set_server(bus, 1, Id{.words = {1, 2}});
  library().negotiate_fds(bus, 1);
  library().add_filter(
      bus, nullptr,
      [](void* message, void* user, void*) { return static_cast<Server*>(user)->answer(message); }, &server);
  bool is_open = library().start(bus) >= 0;
  while (is_open && !ends_) {
    const int did = library().process(bus, nullptr);
    is_open = did >= 0 && (did > 0 || library().wait(bus, 20'000) >= 0);
  }
  library().close(bus);
}

}  // namespace weft::test
