// A command of the user's that is run when a run ends, or has to wait in its course: --notify 'notify-send
// "$WEFT_TEXT"'.
//
// The shell gets it with WEFT_JOB (a number, empty on one machine), WEFT_STATE (waiting, finished, stopped,
// failed), WEFT_REASON and WEFT_TEXT, a sentence. What it prints goes to standard error. It is given 30 s,
// and nobody waits for it but the command's own end.
#pragma once

#include <memory>
#include <string>

#include "cli/listener.h"

namespace weft::cli {

std::unique_ptr<Listener> make_notifier(std::string command, std::string name);

}  // namespace weft::cli
