import asyncio, threading, time
from bench import tunnel_hostile as t
from bench.tunnel_load import _files
from bench.tunnel_peers import Folder
from vmhost.tunnel.tls import device_context
def rss(pid): return int(open(f"/proc/{pid}/statm").read().split()[1])*4096>>20
if __name__ == "__main__":
    _files(8000)
    folder=Folder()
    try:
        port,pid=folder.serve(t._serve,folder)
        context=device_context(folder.keys/"ca.pem")
        folder.serve(t._attackers,folder,port,50)
        seen=[]
        def watch():
            while True:
                seen.append(rss(pid)); print(len(seen)-1,"min",seen[-1],"MiB",flush=True); time.sleep(60)
        threading.Thread(target=watch,daemon=True).start()
        times,grown=asyncio.run(t._times(context,port,pid,range(50,1000),600.0))
        print("p99 ms",t._p99(times),"grown MiB",grown>>20,seen,flush=True)
    finally:
        folder.close()
