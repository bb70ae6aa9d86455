// Where a link's first connection is dialled next, after which pause, and what came of it before: each
// address in turn and then the relay, first what worked last. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "peer/machine/link_times.h"

namespace weft::peer {

class LinkDialling {
 public:
  // `dials`: this side goes to the other's addresses; else to the relay alone, when it has to.
  LinkDialling(bool dials, std::vector<std::string> addresses)
      : dials_(dials), addresses_(std::move(addresses)) {}

  // What is dialled from now on; empty: the relay.
  std::string begin(bool over_relay);
  bool is_under_way() const { return is_under_way_; }
  bool is_over_relay() const { return is_over_relay_; }       // what was dialled last
  bool end() { return std::exchange(is_under_way_, false); }  // whether something was dialled
  void fail(const std::string& why);                          // what was dialled last: the next one's turn
  void go_on() { address_ = address_ < addresses_.size() ? address_ + 1 : 0; }

  // The link is up. Through the relay: both sides go there by themselves from now on.
  void came_up(bool relayed);
  // Something came over the link: what was tried before does not count any more.
  void something_came() { tries_ = 0; }
  // Another try that led nowhere; a problem is kept for each place, the latest.
  void count_try() { ++tries_; }
  void note(const std::string& where, const std::string& what) { problems_[where] = what; }
  std::string problems() const;

  bool goes_by_itself() const { return dials_ || was_relayed_; }  // else the other side comes
  // Every address once at once, then with growing pauses.
  Duration pause(Duration longest) const;
  Duration deadline(const LinkTimes& times, bool was_up) const;
  // The address that works; nullptr where only the relay did.
  const std::string* address() const {
    return address_ < addresses_.size() ? &addresses_[address_] : nullptr;
  }

 private:
  size_t places() const { return dials_ ? addresses_.size() + 1 : 1; }

  bool dials_;
  std::vector<std::string> addresses_;
  bool is_under_way_ = false, is_over_relay_ = false;
  bool was_relayed_ = false;  // when it was up last
  size_t address_ = 0;        // what is dialled next: the addresses, then the relay
  size_t tries_ = 0;          // since something came
  std::map<std::string, std::string> problems_;
};

}  // namespace weft::peer
