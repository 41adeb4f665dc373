# Runs a PostgreSQL server for as long as somebody holds the other end of our standard input.
#
# arguments: directory to remove at the end (or nothing), seconds of grace, then the server's command.
# input: one line per order, a signal's name: INT (fast), QUIT (immediate), KILL. End of input: whoever
# started us is gone, so stop the server, in order if it can be.
# A file named "keep" in the directory keeps it: the server is only stopped for a while.
remove=$1 grace=$2
shift 2
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
(
  while read -r signal <&3; do kill -s "$signal" "$server"; done
  kill -s INT "$server"
  sleep "$grace" 3<&-
  kill -s QUIT "$server"
) &
watcher=$!
wait "$server"
code=$?
kill "$watcher"
if [ -n "$remove" ] && [ ! -e "$remove/keep" ]; then rm -rf -- "$remove"; fi
exit "$code"
