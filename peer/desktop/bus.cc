#include "peer/desktop/bus.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <chrono>

namespace weft::peer {

namespace {
constexpr uint64_t kPatience = 500'000;  // microseconds, of one answer
constexpr int kReadyTries = 20;          // of a wait of 50 ms each
constexpr uint64_t kReadyWait = 50'000;
}  // namespace

// The functions of sd-bus that are used, as its manual declares them; below 0 is an error everywhere.
struct Bus::Library {
  void* handle = nullptr;
  int (*open_system)(void**) = nullptr;
  int (*open_user)(void**) = nullptr;
  void* (*close)(void*) = nullptr;
  int (*is_ready)(void*) = nullptr;
  int (*is_open)(void*) = nullptr;
  int (*process)(void*, void**) = nullptr;
  int (*wait)(void*, uint64_t) = nullptr;
  int (*new_call)(void*, void**, const char*, const char*, const char*, const char*) = nullptr;
  int (*append)(void*, const char*, ...) = nullptr;
  int (*set_auto_start)(void*, int) = nullptr;
  int (*call)(void*, void*, uint64_t, void*, void**) = nullptr;
  int (*enter)(void*, char, const char*) = nullptr;
  int (*read)(void*, char, void*) = nullptr;
  void* (*unref)(void*) = nullptr;

  ~Library() {
    if (handle != nullptr) ::dlclose(handle);
  }
  template <typename F>
  bool take(F& into, const char* name) const {
    into = reinterpret_cast<F>(::dlsym(handle, name));
    return into != nullptr;
  }
  bool load(const std::string& path) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return handle != nullptr && take(open_system, "sd_bus_open_system") &&
           take(open_user, "sd_bus_open_user") && take(close, "sd_bus_close_unref") &&
           take(is_ready, "sd_bus_is_ready") && take(is_open, "sd_bus_is_open") &&
           take(process, "sd_bus_process") && take(wait, "sd_bus_wait") &&
           take(new_call, "sd_bus_message_new_method_call") && take(append, "sd_bus_message_append") &&
           take(set_auto_start, "sd_bus_message_set_auto_start") && take(call, "sd_bus_call") &&
           take(enter, "sd_bus_message_enter_container") && take(read, "sd_bus_message_read_basic") &&
           take(unref, "sd_bus_message_unref");
  }
};

struct Bus::Message {
  explicit Message(const Library& of) : library(of) {}
  ~Message() {
    if (at != nullptr) library.unref(at);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  const Library& library;
  void* at = nullptr;
};

std::unique_ptr<Bus> Bus::open(Kind kind, const std::string& library) {
  auto loaded = std::make_unique<Library>();
  void* bus = nullptr;
  if (!loaded->load(library)) return nullptr;
  if ((kind == Kind::System ? loaded->open_system : loaded->open_user)(&bus) < 0) return nullptr;
  std::unique_ptr<Bus> opened(new Bus(std::move(loaded), bus));
  if (!opened->wait_until_ready()) return nullptr;
  return opened;
}

Bus::Bus(std::unique_ptr<Library> library, void* bus) : library_(std::move(library)), bus_(bus) {}

Bus::~Bus() { library_->close(bus_); }

bool Bus::wait_until_ready() {
  for (int i = 0; i < kReadyTries; ++i) {
    int did = 0;
    while ((did = library_->process(bus_, nullptr)) > 0) {
    }
    if (did < 0) return false;
    if (library_->is_ready(bus_) > 0) return true;
    if (library_->wait(bus_, kReadyWait) < 0) return false;
  }
  return false;
}

bool Bus::call(const Message& request, Message& reply) {
  library_->set_auto_start(request.at, 0);  // nobody is started to be asked
  const bool answered = library_->call(bus_, request.at, kPatience, nullptr, &reply.at) >= 0;
  while (library_->process(bus_, nullptr) > 0) {  // what comes unasked does not pile up
  }
  lost_ = library_->is_open(bus_) <= 0;
  return answered;
}

bool Bus::get(const Object& of, const char* property, char type, void* value) {
  Message request(*library_), reply(*library_);
  const char contents[] = {type, '\0'};
  return library_->new_call(bus_, &request.at, of.service, of.path, "org.freedesktop.DBus.Properties",
                            "Get") >= 0 &&
         library_->append(request.at, "ss", of.interface, property) >= 0 && call(request, reply) &&
         library_->enter(reply.at, 'v', contents) > 0 && library_->read(reply.at, type, value) > 0;
}

std::optional<bool> Bus::flag(const Object& of, const char* property) {
  int value = 0;
  return get(of, property, 'b', &value) ? std::optional(value != 0) : std::nullopt;
}
std::optional<int32_t> Bus::number(const Object& of, const char* property) {
  int32_t value = 0;
  return get(of, property, 'i', &value) ? std::optional(value) : std::nullopt;
}
std::optional<uint64_t> Bus::count(const Object& of, const char* property) {
  uint64_t value = 0;
  return get(of, property, 't', &value) ? std::optional(value) : std::nullopt;
}

std::optional<int> Bus::put_off_sleep(const Object& logind, const char* who, const char* why) {
  Message request(*library_), reply(*library_);
  int descriptor = -1;
  const bool given =
      library_->new_call(bus_, &request.at, logind.service, logind.path, logind.interface, "Inhibit") >= 0 &&
      library_->append(request.at, "ssss", "sleep", who, why, "delay") >= 0 && call(request, reply) &&
      library_->read(reply.at, 'h', &descriptor) > 0;
  if (!given) return std::nullopt;
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);  // the answer's goes with it
  return own >= 0 ? std::optional(own) : std::nullopt;
}

}  // namespace weft::peer
