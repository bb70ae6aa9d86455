// Events of jobs for users: past ones a page at a time, as they are taken, and new ones as they come.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "broker/service/bus.h"
#include "broker/service/desk.h"

namespace weft::broker {

class EventDesk {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    // Whether the core is done with what this one has said: a page is asked for in its name.
    virtual bool may_ask(ConnectionId whose) const = 0;
    virtual void ask(ConnectionId whose, const proto::GetEvents& page) = 0;  // the core
    virtual void come_back(ConnectionId whose) = 0;  // calls go_on(), soon, but not from within this
  };
  EventDesk(Connections& connections, Outside& outside) : connections_(connections), outside_(outside) {}

  void get(ConnectionId whose, const proto::GetEvents& request);
  // It has room, or the core is done with what it said.
  void go_on(ConnectionId whose);
  // What the core answers. Where the asker follows, what was published until now is told to on_event() before
  // follow() is called.
  void on_page(const EventsPage& page);
  void follow(ConnectionId whose, proto::JobNumber job, uint64_t after);
  void on_event(const std::shared_ptr<const proto::JobEvent>& event);
  void end(ConnectionId whose);

 private:
  struct Reader {
    std::map<proto::JobNumber, uint64_t> following{};  // the sequence sent last
    std::deque<proto::GetEvents> pages{};              // to ask the core for, one after the other
  };
  void want(ConnectionId whose, Reader& reader, const proto::GetEvents& request);
  // False: it follows the job no longer, for its end has come, or it has to catch up first.
  bool send_event(ConnectionId whose, Reader& reader, const proto::JobEvent& event);
  void keep(const std::shared_ptr<const proto::JobEvent>& event);

  Connections& connections_;
  Outside& outside_;
  std::map<ConnectionId, Reader> readers_;
  std::deque<proto::JobNumber> ended_;  // the last jobs that ended
  struct Recent {
    std::deque<std::shared_ptr<const proto::JobEvent>> events{};
    uint64_t used = 0;  // when, in events of all jobs
  };
  std::map<proto::JobNumber, Recent> recent_;
  uint64_t events_seen_ = 0;
};

}  // namespace weft::broker
