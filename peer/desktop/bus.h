// A connection to a bus of the desktop (D-Bus), for reading a few properties. By sd-bus of libsystemd, which
// is opened where it is there: a machine without it has neither logind nor a desktop's services. Each wait
// has a deadline. For one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/units.h"

namespace weft::peer {

class Bus {
 public:
  enum class Kind : uint8_t { System, User };  // as DBUS_SYSTEM_BUS_ADDRESS and its like say, or usually
  // A service's object, and the interface of what is asked of it.
  struct Object {
    const char* service;
    const char* path;
    const char* interface;
  };

  // Null: there is no library, or nobody listens.
  static std::unique_ptr<Bus> open(Kind kind, const std::string& library = "libsystemd.so.0");
  ~Bus();
  Bus(const Bus&) = delete;
  Bus& operator=(const Bus&) = delete;

  bool is_lost() const { return lost_; }  // it ended: open another

  // A property. Nothing: the service does not run, and is not started for this, or says something else.
  std::optional<bool> flag(const Object& of, const char* property);
  std::optional<int32_t> number(const Object& of, const char* property);
  std::optional<uint64_t> count(const Object& of, const char* property);

  // What logind's Inhibit returns: a descriptor by which sleep is put off for a moment, until it is closed.
  std::optional<int> put_off_sleep(const Object& logind, const char* who, const char* why);

 private:
  struct Library;
  struct Message;
  Bus(std::unique_ptr<Library> library, void* bus);
  bool wait_until_ready();
  bool get(const Object& of, const char* property, char type, void* value);
  bool call(const Message& request, Message& reply);

  const std::unique_ptr<Library> library_;
  void* const bus_;
  bool lost_ = false;
};

}  // namespace weft::peer
