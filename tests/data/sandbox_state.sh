# All that a command can see of a sandbox, except what differs between two new ones.
pwd; umask; ulimit -a; alias; shopt -s; declare -F; set -o; env | grep -v -e '^_=' -e ^HOSTNAME= -e ^OLDPWD= | sort
find /testbed /tmp /dev/shm /dev/mqueue /run /root /home /var/spool /etc /usr/local -xdev -printf '%p %y %m %U %G %s %l\n' | sort
for f in /testbed /tmp /root; do getfattr -d $f; [ $(stat -c %Y $f) -gt 1600000000 ] && echo new; done
cat /etc/hosts /etc/resolv.conf /etc/passwd /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg | grep -v "$HOSTNAME"
cut -d' ' -f5,6,9 /proc/self/mountinfo; cat /proc/net/dev | cut -d: -f1; ls /proc/sys/net/ipv4/conf
for p in /proc/[0-9]*; do [ -e $p/comm ] && l[${#l[@]}]="$(< $p/comm) $(< $p/oom_score_adj) $(< $p/limits)"; done
printf '%s\n' "${l[@]}" | sort | uniq -c; ps -o ni= -p $PPID
taskset -p $$ | sed s/.*:// ; ls / 
type ls python3 bash
python3 -c 'import pty, shutil'; uname -n | wc -c
md5sum /bin/bash $(python3 -c 'import pty, tty, shutil, json; print(pty.__file__, tty.__file__, shutil.__file__, json.__file__)')
